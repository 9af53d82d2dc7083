// The tree of one step, as a drawing and as a list.  Both tell which node has focus or the pointer.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { layoutOf, NODE_HEIGHT, type PlacedNode } from "./layout";
import { childrenOf, KIND_NAMES, type Kind, type ShownNode } from "./step";
import { percent, spoken, visible } from "./words";

const MARGIN = 8;
const SMALLEST = 0.72;

interface Props {
  nodes: ShownNode[];
  onChoose: (node: ShownNode) => void;
}

/** A node's name for screen readers; it begins with what is written in the drawing. */
function nameOf({ node, label, figure }: PlacedNode): string {
  const written = figure ? `${label} ${figure}` : label;
  return [written, ...spoken(node.text), KIND_NAMES[node.kind]].join(", ");
}

function Edge({ from, to }: { from: PlacedNode; to: PlacedNode }) {
  const x1 = from.x + from.width;
  const y1 = from.y + NODE_HEIGHT / 2;
  const y2 = to.y + NODE_HEIGHT / 2;
  const middle = (x1 + to.x) / 2;
  const d = `M${x1},${y1}C${middle},${y1} ${middle},${y2} ${to.x},${y2}`;
  return <path class={`edge ${to.node.kind}`} d={d} />;
}

function Pill({ place }: { place: PlacedNode }) {
  const { node, label, figure, width, labelWidth } = place;
  const filled = node.probability === null ? 0 : (width - 12) * Math.min(1, node.probability);
  return (
    <>
      <rect class="pill" width={width} height={NODE_HEIGHT} rx={6} />
      {filled > 0 && <rect class="share" x={6} y={NODE_HEIGHT - 5} width={filled} height={2.5} rx={1} />}
      <text class="label" x={9} y={15.5}>
        {label}
      </text>
      {node.kind === "refused" && <path class="strike" d={`M8,12h${labelWidth + 2}`} />}{" "}
      <text class="figure" x={width - 8} y={15}>
        {figure}
      </text>
    </>
  );
}

/** Where an arrow key leads: up and down in reading order, right to the first child, left to the parent. */
function target(key: string, at: number, order: ShownNode[], children: ShownNode[][]): ShownNode | undefined {
  const node = order[at];
  switch (key) {
    case "ArrowDown":
      return order[at + 1];
    case "ArrowUp":
      return order[at - 1];
    case "ArrowRight":
      return node && children[node.index]?.[0];
    case "ArrowLeft":
      return node && order.find((other) => other.index === node.parent);
    case "Home":
      return order[0];
    case "End":
      return order.at(-1);
  }
}

function readingOrder(nodes: ShownNode[], children: ShownNode[][]): ShownNode[] {
  const order: ShownNode[] = [];
  const rest = nodes.slice(0, 1);
  for (let node = rest.pop(); node; node = rest.pop()) {
    order.push(node);
    rest.push(...[...(children[node.index] ?? [])].reverse());
  }
  return order;
}

export function TreeDrawing({ nodes, onChoose }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const [focused, setFocused] = useState(0);
  const [room, setRoom] = useState(0);
  const { placed, width, height } = useMemo(() => layoutOf(nodes), [nodes]);
  const children = useMemo(() => childrenOf(nodes), [nodes]);
  const order = useMemo(() => readingOrder(nodes, children), [nodes, children]);
  const stop = Math.min(focused, nodes.length - 1);

  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setRoom(element.clientWidth));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  const choose = (node: ShownNode) => {
    setFocused(node.index);
    onChoose(node);
  };
  const move = (event: KeyboardEvent) => {
    const at = order.findIndex((node) => node.index === stop);
    const next = target(event.key, at, order, children);
    if (!next) return;
    event.preventDefault();
    frame.current?.querySelector<SVGElement>(`[data-node="${next.index}"]`)?.focus();
  };

  const fullWidth = width + 2 * MARGIN;
  const fullHeight = height + 2 * MARGIN;
  const scale = room ? Math.min(1, Math.max(SMALLEST, room / fullWidth)) : 1;
  const path = placed.filter(({ node }) => node.kind === "accepted" || node.kind === "own");

  // Trees are often higher than their frame: begin where the accepted path is.
  useEffect(() => {
    const element = frame.current;
    const way = path.length > 0 ? path : placed.slice(0, 1);
    const middle = way.reduce((sum, place) => sum + place.y, 0) / (way.length || 1) + MARGIN;
    element?.scrollTo({ left: 0, top: middle * scale - element.clientHeight / 2 });
  }, [placed, scale]);

  return (
    <div class="tree-frame" ref={frame}>
      <svg
        role="tree"
        aria-label="Token tree of this step"
        width={fullWidth * scale}
        height={fullHeight * scale}
        viewBox={`${-MARGIN} ${-MARGIN} ${fullWidth} ${fullHeight}`}
        onKeyDown={move}
      >
        {/* The path last, so that its lines lie on top. */}
        {[...placed.filter((place) => !path.includes(place)), ...path].map((place) => {
          const from = placed[place.node.parent];
          return from && <Edge key={place.node.index} from={from} to={place} />;
        })}
        {placed.map((place) => (
          <g
            key={place.node.index}
            class={`node ${place.node.kind}`}
            transform={`translate(${place.x},${place.y})`}
            role="treeitem"
            aria-level={place.node.depth + 1}
            aria-label={nameOf(place)}
            tabindex={place.node.index === stop ? 0 : -1}
            data-node={place.node.index}
            data-kind={place.node.kind}
            onFocus={() => choose(place.node)}
            onPointerEnter={() => onChoose(place.node)}
            onClick={() => choose(place.node)}
          >
            <Pill place={place} />
          </g>
        ))}
      </svg>
    </div>
  );
}

function Branch({ node, children }: { node: ShownNode; children: ShownNode[][] }) {
  const next = children[node.index] ?? [];
  return (
    <li class={node.kind}>
      <code>{visible(node.text)}</code>
      {node.probability !== null && <span class="figure"> {percent(node.probability)}</span>}
      <span class="kind"> {KIND_NAMES[node.kind]}</span>
      {next.length > 0 && (
        <ul>
          {next.map((child) => (
            <Branch key={child.index} node={child} children={children} />
          ))}
        </ul>
      )}
    </li>
  );
}

export function TreeList({ nodes }: { nodes: ShownNode[] }) {
  const children = useMemo(() => childrenOf(nodes), [nodes]);
  const root = nodes[0];
  return (
    <div class="tree-frame list" tabindex={0} role="region" aria-label="Token tree of this step as a list">
      <ul>{root && <Branch node={root} children={children} />}</ul>
    </div>
  );
}

const LEGEND: Kind[] = ["root", "accepted", "own", "refused", "unchecked"];

export function Legend() {
  return (
    <ul class="legend" aria-label="What the nodes’ borders mean">
      {LEGEND.map((kind) => (
        <li key={kind}>
          <svg width="30" height="16" aria-hidden="true" class={`node ${kind}`}>
            <rect class="pill" x="2" y="2" width="26" height="12" rx="4" />
            {kind === "refused" && <path class="strike" d="M7,8h16" />}
          </svg>
          {KIND_NAMES[kind]}
        </li>
      ))}
    </ul>
  );
}
