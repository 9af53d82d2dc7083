#!/bin/sh
# A target that does not fit into memory: plain decoding as the system reads the weights, plain decoding
# with weights that are read ahead, and with the latter chains and `priced`.
#
#   sh benchmarks/streamed.sh TARGET DRAFT [BENCH OPTION...]     -n 64 --each 1 --category code ...
#
#   LIMIT=1300M    memory of the whole process (limited.sh: root, Linux); plain decoding has no draft in it
#   DISK=700000000 bytes a second that it may read at most; empty: what the disk gives
#   OUT=streamed   runs are kept in OUT.mmap.jsonl, OUT.plain.jsonl and OUT.ahead.jsonl, and not repeated;
#                  what bench says of each in .md
#   PLAIN=8        tokens that plain decoding writes: its speed does not depend on the text
#   ROUNDS=1       the three kinds of loads take turns so many times
set -eu
[ $# -ge 2 ] || { sed -n '5,12s/^# *//p' "$0" >&2; exit 2; }
target="$1" draft="$2"
shift 2
here="$(dirname "$0")"
out="${OUT:-streamed}"
export DISK_OF="$target"

raw_speed() {
    echo "the disk reads, 4 MiB at a time around the page cache:"
    sh "$here/limited.sh" 300M dd if="$target" of=/dev/null bs=4M count=256 iflag=direct 2>&1 | tail -1
}

run() { # KIND BENCH OPTION...
    kind="$1"
    shift
    sh "$here/limited.sh" "${LIMIT:-1300M}" dyspec-edge bench run -m "$target" \
        -c 2048 --out "$out.$kind.jsonl" --rounds "$round" "$@" >"$out.$kind.md"
}

raw_speed
round=1
while [ "$round" -le "${ROUNDS:-1}" ]; do
    run mmap --stream off --policy none "$@" -n "${PLAIN:-8}"
    run plain --policy none "$@" -n "${PLAIN:-8}"
    run ahead -md "$draft" --policy chain:4 --policy chain:8 --policy chain:16 --policy priced "$@"
    round=$((round + 1))
done
raw_speed
"${PYTHON:-python}" - "$out" <<'EOF'
import json, sys
from statistics import geometric_mean, median

def runs(kind):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}.{kind}.jsonl")]
    return {
        (r["sampling"]["temperature"], r["category"], r["policy"], r["prompt"], r["round"]): s
        for r, s in ((line["run"], line["result"]["stats"]) for line in lines)
    }

def over(kind, temperature, policy):
    """Speedups by category."""
    found = {}
    for (t, category, name, *run), s in ahead.items():
        plain = base[kind].get((t, category, "none", *run))
        if (t, name) == (temperature, policy) and plain:
            ratio = s["tokens_per_second"] / plain["tokens_per_second"]
            found.setdefault(category, []).append(ratio)
    return {category: geometric_mean(ratios) for category, ratios in found.items()}

def show(title, ratios):
    each = ", ".join(f"{category} {ratio:.2f}x" for category, ratio in sorted(ratios.items()))
    print(f"  over {title}: {geometric_mean(ratios.values()):.2f}x ({each})")

base, ahead = {kind: runs(kind) for kind in ("mmap", "plain")}, runs("ahead")
for kind, found in base.items():
    seconds = [1 / s["tokens_per_second"] for s in found.values()]
    print(f"{kind}: {median(seconds):.2f} s a token ({min(seconds):.2f} to {max(seconds):.2f})")
for t, policy in sorted({(key[0], key[2]) for key in ahead}):
    one = [s for key, s in ahead.items() if (key[0], key[2]) == (t, policy)]
    of = {name: sum(s[name] for s in one) for name, value in one[0].items() if type(value) in (int, float)}
    print(
        f"T = {t:g} {policy}: {of['generated_tokens'] / of['steps']:.2f} tokens a pass, "
        f"{of['decode_seconds'] / of['steps']:.2f} s a step, {of['draft_seconds'] / of['decode_seconds']:.0%} of it "
        f"drafting; {of['streamed_bytes'] / of['generated_tokens'] / 1e6:.0f} MB a token at "
        f"{of['streamed_bytes'] / of['stream_read_seconds'] / 1e6:.0f} MB/s"
    )
    show("plain decoding as the system reads", over("mmap", t, policy))
    show("plain decoding with weights read ahead", over("plain", t, policy))
    if policy == "priced":
        speed, chains = over("plain", t, policy), [over("plain", t, f"chain:{k}") for k in (4, 8, 16)]
        best = {c: ratio / max(chain[c] for chain in chains) for c, ratio in speed.items()}
        show("the best chain of each category", best)
EOF
