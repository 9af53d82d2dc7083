// Two small drawings: what happened over the steps of a reply, and what passes cost.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { curve, type Prices, type Step } from "./step";
import { duration, rate } from "./words";

const HEIGHT = 84;
const LINE_TOP = 10;
const LINE_BOTTOM = 38;
const BARS_TOP = 46;

/** The element's width in pixels, and a reference to put on it. */
function useWidth() {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!element.current) return;
    const watch = new ResizeObserver(([entry]) => setWidth(entry?.contentRect.width ?? 0));
    watch.observe(element.current);
    return () => watch.disconnect();
  }, []);
  return { element, width };
}

function bars(heights: number[], slot: number, scale: number): string {
  const gap = slot > 3 ? 1 : 0;
  return heights
    .map((value, at) => {
      const height = value * scale;
      return `M${at * slot},${HEIGHT - height}h${slot - gap}v${height}h${gap - slot}z`;
    })
    .join("");
}

function line(values: number[], slot: number, largest: number): string {
  const points = values.map((value, at) => {
    const y = LINE_BOTTOM - (value / largest) * (LINE_BOTTOM - LINE_TOP);
    return `${((at + 0.5) * slot).toFixed(1)},${y.toFixed(1)}`;
  });
  return points.length ? `M${points.join("L")}` : "";
}

interface TimelineProps {
  steps: Step[];
  chosen: number;
  onChoose: (at: number) => void;
}

/** tok/s as a line; below it, for each step, the rows of the pass and the tokens it gave. */
export function Timeline({ steps, chosen, onChoose }: TimelineProps) {
  const { element, width } = useWidth();
  const slot = Math.min(24, width / Math.max(1, steps.length));
  const { speeds, rows, tokens } = useMemo(
    () => ({
      speeds: steps.map((step) => step.tokens_per_second),
      rows: steps.map((step) => step.rows),
      tokens: steps.map((step) => step.emitted.length),
    }),
    [steps],
  );
  const fastest = Math.max(...speeds, 1e-9);
  const largest = Math.max(...rows, ...tokens, 1);
  const scale = (HEIGHT - BARS_TOP) / largest;
  const pick = (event: PointerEvent) => {
    if (event.type === "pointermove" && event.buttons !== 1) return;
    const left = element.current?.getBoundingClientRect().left ?? 0;
    const at = Math.floor((event.clientX - left) / slot);
    onChoose(Math.min(steps.length - 1, Math.max(0, at)));
  };
  return (
    <div class="timeline" aria-hidden="true">
      <div class="axis">
        <span class="speed-text">
          {rate(fastest)}
        </span>
        <span class="rows-text">{largest} rows</span>
      </div>
      <div class="plot" ref={element} onPointerDown={pick} onPointerMove={pick}>
        <svg width={width} height={HEIGHT}>
          <rect class="marker" x={chosen * slot} width={Math.max(2, slot)} height={HEIGHT} />
          <path class="rows" d={bars(rows, slot, scale)} />
          <path class="tokens" d={bars(tokens, slot, scale)} />
          <path class="speed" d={line(speeds, slot, fastest)} />
          {chosen < speeds.length && (
            <circle
              class="speed-point"
              cx={(chosen + 0.5) * slot}
              cy={LINE_BOTTOM - ((speeds[chosen] ?? 0) / fastest) * (LINE_BOTTOM - LINE_TOP)}
              r={3}
            />
          )}
        </svg>
      </div>
    </div>
  );
}

const PRICE_HEIGHT = 120;
const EDGE = { left: 46, right: 10, top: 8, bottom: 20 };

interface PriceChartProps {
  prices: Prices;
  /** Rows and seconds of the step's own pass, which is marked. */
  rows: number;
  seconds: number;
}

/** Seconds of a pass against its rows, for target and draft. */
export function PriceChart({ prices, rows, seconds }: PriceChartProps) {
  const { element, width } = useWidth();
  const target = curve(prices.target);
  const draft = curve(prices.draft);
  const points = [...target, ...draft];
  const mostRows = Math.max(...points.map((point) => point.rows), rows, 2);
  const mostSeconds = Math.max(...points.map((point) => point.seconds), seconds);
  const x = (value: number) =>
    EDGE.left + (Math.log2(value) / Math.log2(mostRows)) * Math.max(0, width - EDGE.left - EDGE.right);
  const y = (value: number) =>
    PRICE_HEIGHT - EDGE.bottom - (value / mostSeconds) * (PRICE_HEIGHT - EDGE.top - EDGE.bottom);
  const drawn = (points: typeof target) =>
    points.length ? `M${points.map((point) => `${x(point.rows)},${y(point.seconds)}`).join("L")}` : "";
  const ticks = [...new Set(target.map((point) => point.rows))].filter((value) => Number.isInteger(Math.log2(value)));
  return (
    <div class="prices" ref={element} aria-hidden="true">
      <svg width={width} height={PRICE_HEIGHT}>
        <path class="axis-line" d={`M${EDGE.left},${y(0)}H${width - EDGE.right}`} />
        <text class="tick end" x={EDGE.left - 6} y={y(mostSeconds) + 4}>
          {duration(mostSeconds)}
        </text>
        <text class="tick end" x={EDGE.left - 6} y={y(0) + 4}>
          0
        </text>
        {ticks.map((value) => (
          <text class="tick" key={value} x={x(value)} y={PRICE_HEIGHT - 5}>
            {value}
          </text>
        ))}
        {[target, draft].map((points, which) => {
          const name = which === 0 ? "target" : "draft";
          return (
            <g key={name} class={name}>
              <path class="curve" d={drawn(points)} />
              {points.map((point) => (
                <circle key={point.rows} cx={x(point.rows)} cy={y(point.seconds)} r={2.5} />
              ))}
            </g>
          );
        })}
        {rows > 0 && <circle class="ring" cx={x(rows)} cy={y(seconds)} r={5} />}
      </svg>
    </div>
  );
}

export function PriceTable({ prices }: { prices: Prices }) {
  const target = curve(prices.target);
  const draft = curve(prices.draft);
  const sizes = [...new Set([...target, ...draft].map((point) => point.rows))].sort((a, b) => a - b);
  const cell = (points: typeof target, rows: number) => {
    const point = points.find((other) => other.rows === rows);
    return point ? duration(point.seconds) : "–";
  };
  return (
    <div class="scroll" tabindex={0} role="region" aria-label="Measured prices">
      <table>
        <thead>
          <tr>
            <th scope="col">rows</th>
            <th scope="col">target</th>
            <th scope="col">draft</th>
          </tr>
        </thead>
        <tbody>
          {sizes.map((rows) => (
            <tr key={rows}>
              <th scope="row">{rows}</th>
              <td>{cell(target, rows)}</td>
              <td>{cell(draft, rows)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
