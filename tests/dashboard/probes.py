"""What is asked of the page, as JavaScript."""

ROWS = "[...document.querySelectorAll('#rows .row')].map(r => r.querySelector('.name').textContent)"
LIVE = "document.getElementById('link').dataset.state === 'live'"
SKIP_TO_ROWS = "(document.querySelector('.skip').click(), document.activeElement.matches('#rows .row'))"
"""Until a row has the keyboard: right after a resize there is room for none yet."""

FRAMES_IN_2500_MS = """
(async () => {
  let count = 0;
  const request = window.requestAnimationFrame;
  window.requestAnimationFrame = (paint) => { count += 1; return request(paint); };
  await new Promise((done) => setTimeout(done, 2500));
  window.requestAnimationFrame = request;
  return count;
})()
"""

OVERHANGING = """
[...document.querySelectorAll('body *')].filter((e) => {
  if (e.closest('.scrolls-x, .sr, canvas, [hidden], svg, .skip') || e.offsetParent === null) return false;
  const box = e.getBoundingClientRect();
  return box.width > 0 && box.right > innerWidth + 1;
}).map((e) => e.tagName + '.' + e.className)
"""

CONTRAST = """
(() => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r, g, b].map((c, i) => (c * a + [R, G, B][i] * (255 - a)) / 255);
  const luminance = (rgb) => rgb.map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    const chain = [];
    for (let at = e; at; at = at.parentElement) chain.push(rgba(getComputedStyle(at).backgroundColor));
    return chain.reverse().reduce((below, colour) => over(colour, below), [255, 255, 255]);
  };
  const UNSEEN = '.sr, [hidden], script, noscript, option, .skip, dialog:not([open])';
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility() || e.closest(UNSEEN)) continue;
    const style = getComputedStyle(e);
    const behind = ground(e);
    const fore = over(rgba(e instanceof SVGElement ? style.fill : style.color), behind);
    const [a, b] = [luminance(fore), luminance(behind)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const name = e.className.baseVal ?? e.className;
    if (ratio < 4.5) low.push(`${name}: ${node.data.trim()} ${ratio.toFixed(2)}`);
  }
  return [...new Set(low)];
})()
"""
