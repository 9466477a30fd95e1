// The waterfall's bars on a canvas. Each phase differs by height and pattern, too, not by colour alone.

import { clock, percent } from "./dom.js";
import { fitted } from "./labels.js";

export const ROW_PX = 26;
const MAX_NAMES = 16; // on a bar; more never fit
const BAR = { queue: [9, 7], prefill: [5, 14], decode: [5, 14], tool: [8, 9] };
const HIT_TOP = 21;
const HIT_PX = 3;
const TILE = 6;
const OVER_ALPHA = 0.45;
const FONT = "10.5px ui-sans-serif, system-ui, sans-serif";

const TOKENS = [
  "page", "panel", "ink", "dim", "rule", "grid", "queue", "prefill", "decode", "tool", "idle", "bad", "focus", "hit", "hit-rest",
  "on-decode", "on-prefill", "tool-page", "on-tool", "queue-page",
];

/** The colours of the theme in force, and the patterns made of them. */
export function readPalette(ctx) {
  const style = getComputedStyle(document.documentElement);
  const palette = Object.fromEntries(TOKENS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  palette.patterns = {
    queue: hatch(ctx, palette["queue-page"], palette.queue, [[-1, 7, 7, -1], [-4, 4, 4, -4], [2, 10, 10, 2]], 1.8),
    prefill: hatch(ctx, palette.prefill, palette.panel, [[1, -1, 1, 7]], 0.9),
    tool: hatch(ctx, palette["tool-page"], palette.tool, [[-1, -1, 7, 7], [-1, 7, 7, -1]], 0.9),
  };
  return palette;
}

function hatch(ctx, ground, ink, lines, width) {
  const tile = document.createElement("canvas");
  const scale = 2;
  tile.width = tile.height = TILE * scale;
  const pen = tile.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = ground;
  pen.fillRect(0, 0, TILE, TILE);
  pen.strokeStyle = ink;
  pen.lineWidth = width;
  for (const [x0, y0, x1, y1] of lines) {
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
  }
  const pattern = ctx.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}

/** Makes the canvas as sharp as the screen; true if it changed. */
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width === w && canvas.height === h) return false;
  canvas.width = w;
  canvas.height = h;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  return true;
}

export function paintAxis(ctx, palette, timeline, height, nowS) {
  ctx.clearRect(0, 0, timeline.width, height);
  ctx.font = FONT;
  ctx.fillStyle = palette.dim;
  ctx.textBaseline = "middle";
  const { stepS, ticks } = timeline.ticks();
  for (const atS of ticks) {
    const x = timeline.x(atS);
    ctx.fillRect(Math.round(x), height - 4, 1, 4);
    const text = stepS >= 60 ? clock(atS, { seconds: false }) : stepS >= 1 ? clock(atS) : `${clock(atS)}.${String(Math.round((atS % 1) * 100)).padStart(2, "0")}`;
    if (x + ctx.measureText(text).width + 3 < timeline.width) ctx.fillText(text, x + 3, height / 2);
  }
  const x = timeline.x(nowS);
  if (x >= 0 && x <= timeline.width) {
    ctx.fillStyle = palette.focus;
    ctx.fillRect(Math.round(x), 0, 1, height);
  }
}

/** `rows`: those in view, each with `y`. `active`: the turn that has the focus. */
export function paintBars(ctx, palette, timeline, rows, { height, nowS, activeTurn, openTurn }) {
  ctx.clearRect(0, 0, timeline.width, height);
  ctx.fillStyle = palette.grid;
  for (const atS of timeline.ticks().ticks) ctx.fillRect(Math.round(timeline.x(atS)), 0, 1, height);
  ctx.font = FONT;
  ctx.textBaseline = "middle";
  for (const row of rows) paintRow(ctx, palette, timeline, row, nowS, activeTurn, openTurn);
  const x = timeline.x(nowS);
  ctx.fillStyle = palette.focus;
  if (x >= 0 && x <= timeline.width) ctx.fillRect(Math.round(x), 0, 1, height);
}

function paintRow(ctx, palette, timeline, row, nowS, activeTurn, openTurn) {
  const { thread, session, y } = row;
  if (row.spawnY !== null) connect(ctx, palette, timeline, row);
  if (thread === null) return;
  const endS = session.endedS === null ? nowS : session.lastS;
  idleLine(ctx, palette, timeline, y, thread.firstS, Math.min(endS, session.endedS === null && row.depth === 0 ? nowS : Math.max(thread.lastS, lastTool(thread, nowS))));
  ctx.globalAlpha = session.endedS === null ? 1 : OVER_ALPHA;
  for (const span of thread.tools) paintTool(ctx, palette, timeline, y, span, nowS);
  for (let i = firstInView(thread.turns, timeline.startS); i < thread.turns.length; i += 1) {
    const turn = thread.turns[i];
    if (turn.arriveS > timeline.endS) break;
    paintTurn(ctx, palette, timeline, y, turn, nowS);
  }
  ctx.globalAlpha = 1;
  for (const [turn, colour] of [[openTurn, palette.ink], [activeTurn, palette.focus]]) {
    if (turn === null || turn.thread !== thread) continue;
    const x0 = timeline.x(turn.arriveS);
    const x1 = Math.max(x0 + 4, timeline.x(turn.overS ?? nowS));
    ctx.strokeStyle = colour;
    ctx.lineWidth = 2;
    ctx.strokeRect(x0 - 2, y + 2, x1 - x0 + 4, ROW_PX - 3);
  }
}

function lastTool(thread, nowS) {
  const span = thread.tools.at(-1);
  return span === undefined ? -Infinity : span.endS ?? nowS;
}

/** Turns are in order of arrival; long ones may have begun before those that are out of view. */
function firstInView(turns, startS) {
  let low = 0;
  let high = turns.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (turns[middle].arriveS < startS) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 4);
}

function idleLine(ctx, palette, timeline, y, fromS, toS) {
  const x0 = Math.max(0, timeline.x(fromS));
  const x1 = Math.min(timeline.width, timeline.x(toS));
  if (x1 <= x0) return;
  ctx.strokeStyle = palette.idle;
  ctx.lineWidth = 1;
  ctx.setLineDash([1.5, 3]);
  ctx.beginPath();
  ctx.moveTo(x0, y + 12.5);
  ctx.lineTo(x1, y + 12.5);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** From the row above that a conversation came from, down to where it began. */
function connect(ctx, palette, timeline, row) {
  const x = Math.round(timeline.x(row.thread?.firstS ?? row.session.startedS)) - 0.5;
  if (x < 0 || x > timeline.width) return;
  ctx.strokeStyle = palette.dim;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(x, row.spawnY + 19);
  ctx.lineTo(x, row.y + 12);
  ctx.stroke();
}

function bar(ctx, timeline, y, phase, fill, fromS, toS) {
  const x0 = Math.max(-4, timeline.x(fromS));
  const x1 = Math.min(timeline.width + 4, timeline.x(toS));
  if (x1 < 0 || x0 > timeline.width) return null;
  const width = Math.max(1, x1 - x0);
  if (ctx.globalAlpha < 1) ctx.clearRect(x0, y + BAR[phase][0], width, BAR[phase][1]); // nothing shines through
  ctx.fillStyle = fill;
  ctx.fillRect(x0, y + BAR[phase][0], width, BAR[phase][1]);
  return { x0, x1: x0 + width, width };
}

function paintTool(ctx, palette, timeline, y, span, nowS) {
  const box = bar(ctx, timeline, y, "tool", palette.patterns.tool, span.startS, span.endS ?? nowS);
  if (box === null || box.width < 3) return;
  ctx.strokeStyle = palette.tool;
  ctx.lineWidth = 1;
  ctx.strokeRect(box.x0 + 0.5, y + BAR.tool[0] + 0.5, box.width - 1, BAR.tool[1] - 1);
  const left = Math.max(0, box.x0);
  const room = Math.min(timeline.width, box.x1) - left - 10;
  if (room < 24) return;
  const text = fitted(span.names.slice(0, MAX_NAMES).join(", "), room, (part) => ctx.measureText(part).width);
  if (text === "") return;
  ctx.fillStyle = palette.panel;
  ctx.fillRect(left + 3, y + 5, ctx.measureText(text).width + 6, 14);
  write(ctx, text, left + 6, y + 12.5, palette["on-tool"]);
}

/** What is over is paler; what is written on it is not. */
function write(ctx, text, x, y, colour) {
  const alpha = ctx.globalAlpha;
  ctx.globalAlpha = 1;
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
  ctx.globalAlpha = alpha;
}

function paintTurn(ctx, palette, timeline, y, turn, nowS) {
  const overS = turn.overS ?? nowS;
  for (const attempt of turn.attempts) bar(ctx, timeline, y, "prefill", palette.bad, attempt.submitS, attempt.endS);
  const queueEndS = turn.attempts[0]?.submitS ?? turn.submitS ?? overS;
  if (timeline.x(queueEndS) - timeline.x(turn.arriveS) > 0.6 || turn.submitS === null) {
    bar(ctx, timeline, y, "queue", palette.patterns.queue, turn.arriveS, queueEndS);
  }
  if (turn.submitS !== null) bar(ctx, timeline, y, "prefill", palette.patterns.prefill, turn.submitS, turn.decodeS ?? overS);
  const decode = turn.decodeS === null ? null : bar(ctx, timeline, y, "decode", palette.decode, turn.decodeS, overS);
  if (turn.submitS !== null) paintHit(ctx, palette, timeline, y, turn, overS, decode);
  if (turn.isBad) mark(ctx, palette, timeline.x(overS), y, turn);
  else if (turn.overS !== null) {
    ctx.fillStyle = palette.page; // so that two turns in a row stay two
    ctx.fillRect(timeline.x(overS) - 0.5, y + 4, 1, 16);
  }
}

function paintHit(ctx, palette, timeline, y, turn, overS, decode) {
  const hit = turn.hit;
  if (hit === null) return;
  const x0 = timeline.x(turn.submitS);
  const width = Math.max(2, timeline.x(overS) - x0);
  ctx.fillStyle = palette["hit-rest"];
  ctx.fillRect(x0, y + HIT_TOP, width, HIT_PX);
  ctx.fillStyle = palette.hit;
  ctx.fillRect(x0, y + HIT_TOP, width * Math.min(1, hit.share), HIT_PX);
  const left = decode === null ? 0 : Math.max(0, decode.x0);
  if (decode === null || Math.min(timeline.width, decode.x1) - left < 34 || hit.isExpected) return;
  write(ctx, percent(hit.share), left + 4, y + 12.5, ctx.globalAlpha < 1 ? palette.ink : palette["on-decode"]);
}

/** A cross: refused, failed or cut; a ring: its client left. */
function mark(ctx, palette, x, y, turn) {
  ctx.strokeStyle = palette.bad;
  ctx.fillStyle = palette.panel;
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.arc(x, y + 12, 5.5, 0, 7);
  ctx.fill();
  ctx.stroke();
  if (turn.outcome === "client_left") return;
  ctx.beginPath();
  ctx.moveTo(x - 2.5, y + 9.5);
  ctx.lineTo(x + 2.5, y + 14.5);
  ctx.moveTo(x + 2.5, y + 9.5);
  ctx.lineTo(x - 2.5, y + 14.5);
  ctx.stroke();
}
