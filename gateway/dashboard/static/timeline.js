// Which stretch of time is shown, and where in it a moment lies.

const MIN_SPAN_S = 0.2;
const MAX_SPAN_S = 7 * 24 * 3600;
const AHEAD = 0.03;
/** Share of the width that is left free before what happens now. */
const STEPS_S = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const TICK_PX = 84;

export class Timeline {
  spanS = 120;
  endS = 0;
  width = 1;
  isFollowing = true;

  get startS() {
    return this.endS - this.spanS;
  }

  x(atS) {
    return ((atS - this.startS) / this.spanS) * this.width;
  }

  at(x) {
    return this.startS + (x / this.width) * this.spanS;
  }

  follow(nowS) {
    if (this.isFollowing) this.endS = nowS + this.spanS * AHEAD;
  }

  zoom(factor, x, nowS) {
    const spanS = Math.min(MAX_SPAN_S, Math.max(MIN_SPAN_S, this.spanS * factor));
    const around = this.isFollowing ? this.x(nowS) : x;
    const atS = this.at(around);
    this.spanS = spanS;
    this.endS = atS + (1 - around / this.width) * spanS;
  }

  pan(px) {
    this.isFollowing = false;
    this.endS += (px / this.width) * this.spanS;
  }

  fit(firstS, nowS) {
    this.spanS = Math.min(MAX_SPAN_S, Math.max(10, (nowS - firstS) / (1 - 2 * AHEAD)));
    this.endS = nowS + this.spanS * AHEAD;
  }

  /** Brings a stretch into view, if it is not, without changing the zoom. */
  reveal(fromS, toS) {
    if (fromS >= this.startS && Math.min(toS, fromS + this.spanS * 0.5) <= this.endS) return;
    this.isFollowing = false;
    this.endS = fromS + this.spanS * 0.7;
  }

  ticks() {
    const least = (TICK_PX / this.width) * this.spanS;
    const stepS = STEPS_S.find((step) => step >= least) ?? Math.ceil(least / 86400) * 86400;
    const zoneS = new Date(this.endS * 1000).getTimezoneOffset() * 60;
    const ticks = [];
    for (let atS = Math.ceil((this.startS - zoneS) / stepS) * stepS + zoneS; atS <= this.endS; atS += stepS) ticks.push(atS);
    return { stepS, ticks };
  }
}
