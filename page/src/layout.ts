// Places of a tree's nodes: d3's tidy tree, depth to the right, columns as wide as their tokens.

import { hierarchy, tree } from "d3-hierarchy";
import { childrenOf, type ShownNode } from "./step";
import { percent, shortened, visible } from "./words";

export const NODE_HEIGHT = 24;
const ROW = 32;
const GAP = 26;
const LETTERS = 16;

export interface PlacedNode {
  node: ShownNode;
  label: string;
  figure: string;
  labelWidth: number;
  x: number;
  y: number;
  width: number;
}

export interface Layout {
  placed: PlacedNode[];
  width: number;
  height: number;
}

const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text: string, size: number): number {
  if (!ruler) return text.length * size * 0.61;
  ruler.font = `${size}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
  return ruler.measureText(text).width;
}

function measured(node: ShownNode): Omit<PlacedNode, "x" | "y"> {
  const label = shortened(visible(node.text), LETTERS);
  const figure = node.probability === null ? "" : percent(node.probability);
  const labelWidth = Math.ceil(textWidth(label, 13));
  const figureWidth = figure ? Math.ceil(textWidth(figure, 10)) + 8 : 0;
  return { node, label, figure, labelWidth, width: Math.max(28, labelWidth + figureWidth + 18) };
}

export function layoutOf(nodes: ShownNode[]): Layout {
  const root = nodes[0];
  if (!root) return { placed: [], width: 0, height: 0 };
  const children = childrenOf(nodes);
  const sizes = nodes.map(measured);
  const columns: number[] = [];
  for (const { node, width } of sizes) {
    columns[node.depth] = Math.max(columns[node.depth] ?? 0, width);
  }
  const starts = [0];
  for (const width of columns) starts.push((starts.at(-1) ?? 0) + width + GAP);
  const tidy = tree<ShownNode>().nodeSize([ROW, 1]).separation(() => 1);
  const points = tidy(hierarchy(root, (node) => children[node.index])).descendants();
  const top = Math.min(...points.map((point) => point.x));
  const bottom = Math.max(...points.map((point) => point.x));
  const placed = points.flatMap((point) => {
    const size = sizes[point.data.index];
    return size ? [{ ...size, x: starts[point.depth] ?? 0, y: point.x - top }] : [];
  });
  placed.sort((a, b) => a.node.index - b.node.index);
  const width = (starts.at(-1) ?? GAP) - GAP;
  return { placed, width, height: bottom - top + NODE_HEIGHT };
}
