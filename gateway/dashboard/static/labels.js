// Labels that have to fit.

const MAX_CHARACTERS = 200;

/** As much of a text as fits into so many pixels; "" if nothing does. Measures it a few times, however long it is. */
export function fitted(text, room, measure) {
  const whole = text.slice(0, MAX_CHARACTERS);
  if (whole === text && measure(text) <= room) return text;
  let fits = 0;
  let tooLong = whole.length + 1;
  while (tooLong - fits > 1) {
    const middle = (fits + tooLong) >> 1;
    if (measure(`${whole.slice(0, middle)}…`) <= room) fits = middle;
    else tooLong = middle;
  }
  return fits > 0 ? `${whole.slice(0, fits)}…` : "";
}
