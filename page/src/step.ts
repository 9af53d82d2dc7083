// A step as the server sends it, and what the page derives from it.  Knows nothing of drawing.

export interface Token {
  id: number;
  text: string;
}

export interface TreeNode extends Token {
  /** Index of the parent, which stands before its children; -1 for the root. */
  parent: number;
  /** The draft's confidence in the node among its siblings. */
  probability: number;
  /** The target's pass had a row for the node. */
  checked: boolean;
  accepted: boolean;
}

export interface Prices {
  /** Seconds of a pass over so many rows. */
  target?: Record<string, number>;
  draft?: Record<string, number>;
}

export interface Step {
  index: number;
  seconds: number;
  draft_seconds: number;
  target_seconds: number;
  emitted: Token[];
  nodes: TreeNode[];
  rows: number;
  draft_passes: number;
  tokens_per_second: number;
  prices?: Prices;
}

export type Kind = "root" | "accepted" | "refused" | "unchecked" | "own";

/** A node as it is shown: those of the tree, then the tokens that the target added itself. */
export interface ShownNode {
  index: number;
  parent: number;
  depth: number;
  id: number;
  text: string;
  kind: Kind;
  /** Among its siblings; null where nothing was drafted. */
  probability: number | null;
  /** Product of the probabilities down to the node. */
  pathProbability: number | null;
  note: string;
}

export const KIND_NAMES: Record<Kind, string> = {
  root: "last token so far",
  accepted: "accepted",
  own: "target’s own token",
  refused: "refused",
  unchecked: "not checked",
};

function kindOf(node: TreeNode, index: number): Kind {
  if (index === 0) return "root";
  if (node.accepted) return "accepted";
  return node.checked ? "refused" : "unchecked";
}

function noteOf(kind: Kind, parent: ShownNode | undefined): string {
  switch (kind) {
    case "root":
      return "the last token before this step; the tree grows from it";
    case "accepted":
      return "the target chose the same token";
    case "own":
      return "what the target itself put after the accepted tokens";
    case "unchecked":
      return "drafted, but not bought: the target’s pass had no row for it";
    case "refused":
      return parent?.kind === "refused"
        ? "lost, because the token before it was refused"
        : "the target chose another token here";
  }
}

function drafted(step: Step): ShownNode[] {
  const shown: ShownNode[] = [];
  step.nodes.forEach((node, index) => {
    const parent = shown[node.parent];
    const kind = kindOf(node, index);
    shown.push({
      index,
      parent: node.parent,
      depth: parent ? parent.depth + 1 : 0,
      id: node.id,
      text: node.text,
      kind,
      probability: index === 0 ? null : node.probability,
      pathProbability: parent ? (parent.pathProbability ?? 1) * node.probability : null,
      note: noteOf(kind, parent),
    });
  });
  return shown;
}

export function shownNodes(step: Step): ShownNode[] {
  const shown = drafted(step);
  const path = shown.filter((node) => node.kind === "root" || node.kind === "accepted");
  let last = path.at(-1);
  for (const token of step.emitted.slice(acceptedTokens(step))) {
    if (!last) break;
    const own: ShownNode = {
      ...token,
      index: shown.length,
      parent: last.index,
      depth: last.depth + 1,
      kind: "own",
      probability: null,
      pathProbability: null,
      note: noteOf("own", last),
    };
    shown.push(own);
    last = own;
  }
  return shown;
}

export function childrenOf(nodes: ShownNode[]): ShownNode[][] {
  const children: ShownNode[][] = nodes.map(() => []);
  for (const node of nodes) children[node.parent]?.push(node);
  return children;
}

/** Accepted tokens of a step, the root apart. */
export function acceptedTokens(step: Step): number {
  return step.nodes.filter((node, index) => index > 0 && node.accepted).length;
}

export interface Totals {
  tokens: number;
  seconds: number;
  checked: number;
  accepted: number;
  tokensPerPass: number;
}

export function totalsOf(steps: Step[]): Totals {
  let tokens = 0;
  let seconds = 0;
  let checked = 0;
  let accepted = 0;
  for (const step of steps) {
    tokens += step.emitted.length;
    seconds += step.seconds;
    checked += step.nodes.filter((node, index) => index > 0 && node.checked).length;
    accepted += acceptedTokens(step);
  }
  return { tokens, seconds, checked, accepted, tokensPerPass: tokens / Math.max(1, steps.length) };
}

/** The measured points of a price curve, by rows. */
export function curve(prices: Record<string, number> | undefined): { rows: number; seconds: number }[] {
  return Object.entries(prices ?? {})
    .map(([rows, seconds]) => ({ rows: Number(rows), seconds }))
    .filter((point) => point.rows > 0 && Number.isFinite(point.seconds))
    .sort((a, b) => a.rows - b.rows);
}
