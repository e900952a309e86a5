// Charts of the last hour: one bar for each minute, or lines. What they show is also said in words.
import { html } from "../lib.js";

const HEIGHT = 90;
const WIDTH = 600;

// nice is the next round number.
function nice(n) {
  const power = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((one) => one >= n);
}

// Chart draws series {name, title, values, bars} over the same minutes: those with bars as bars, one before the other, the others as lines.
// format makes text of a value; from and to are the ends of the time axis.
export function Chart({ title, series, format, from, to }) {
  const top = nice(Math.max(1, ...series.flatMap((one) => one.values)));
  const y = (value) => HEIGHT - (value / top) * HEIGHT;
  const step = WIDTH / Math.max(...series.map((one) => one.values.length));
  const said = series.map((one) => `${one.title}: ${format(one.values[one.values.length - 1])}`).join(", ");
  return html`<figure class="card chart">
    <figcaption><h2>${title}</h2><span class="keys small">${series.map((one) => html`<span key=${one.name}><span class=${`key ${one.name}`} aria-hidden="true"></span>${one.title}</span>`)}</span></figcaption>
    <div class="plot"><span class="soft small">${format(top)}</span>
      <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${`${title}. ${said}`}>
        ${[0, 0.5].map((at) => html`<line x1="0" x2=${WIDTH} y1=${HEIGHT * at} y2=${HEIGHT * at} />`)}
        ${series.map((one) => (one.bars
    ? one.values.map((value, i) => value > 0 && html`<rect key=${`${one.name}${i}`} class=${one.name} x=${i * step + 1} width=${step - 2} y=${Math.min(y(value), HEIGHT - 2)} height=${Math.max(HEIGHT - y(value), 2)} />`)
    : html`<polyline key=${one.name} class=${one.name} points=${one.values.map((value, i) => `${(i + 0.5) * step},${y(value)}`).join(" ")} />`))}
      </svg>
      <div class="axis soft small"><span>${from}</span><span>${to}</span></div></div>
  </figure>`;
}
