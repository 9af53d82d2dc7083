#!/bin/sh
# A target that does not fit into memory: plain decoding as the system reads the weights, then with
# weights that are read ahead; chains and `priced` on the latter.
#
#   sh benchmarks/streamed.sh TARGET DRAFT [BENCH OPTION...]     -n 64 --each 1 --category code ...
#
#   LIMIT=1300M    memory of the whole process (limited.sh: root, Linux)
#   DISK=700000000 bytes a second that it may read at most; empty: what the disk gives
#   OUT=streamed   runs are kept in OUT.mmap.jsonl and OUT.ahead.jsonl, and not repeated
#   ROUNDS=1       both kinds of loads take turns so many times
set -eu
[ $# -ge 2 ] || { sed -n '5,10s/^# *//p' "$0" >&2; exit 2; }
target="$1" draft="$2"
shift 2
here="$(dirname "$0")"
out="${OUT:-streamed}"

raw_speed() {
    echo "the disk reads, 4 MiB at a time around the page cache:"
    sh "$here/limited.sh" 300M dd if="$target" of=/dev/null bs=4M count=256 iflag=direct 2>&1 | tail -1
}

run() { # KIND POLICY... -- OPTION...
    kind="$1" stream="$2"
    shift 2
    DISK_OF="$target" sh "$here/limited.sh" "${LIMIT:-1300M}" dyspec-edge bench run -m "$target" -md "$draft" \
        -c 2048 --stream "$stream" --out "$out.$kind.jsonl" --rounds "$round" "$@"
}

raw_speed
round=1
while [ "$round" -le "${ROUNDS:-1}" ]; do
    run mmap off --policy none "$@"
    run ahead auto --policy none --policy chain:4 --policy chain:8 --policy chain:16 --policy priced "$@"
    round=$((round + 1))
done
raw_speed
"${PYTHON:-python}" - "$out" <<'EOF'
import json, sys
from statistics import geometric_mean

def speeds(kind):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}.{kind}.jsonl")]
    return {
        (r["category"], r["prompt"], r["round"], r["sampling"]["temperature"], r["policy"]): s
        for r, s in ((line["run"], line["result"]["stats"]) for line in lines)
    }

mmap, ahead = speeds("mmap"), speeds("ahead")
over = {}  # (temperature, policy) -> category -> ratios
for (category, prompt, number, temperature, policy), s in ahead.items():
    plain = mmap.get((category, prompt, number, temperature, "none"))
    if plain:
        ratios = over.setdefault((temperature, policy), {}).setdefault(category, [])
        ratios.append(s["tokens_per_second"] / plain["tokens_per_second"])
for (temperature, policy), categories in sorted(over.items()):
    means = {name: geometric_mean(ratios) for name, ratios in categories.items()}
    one = [s for key, s in ahead.items() if key[3:] == (temperature, policy)]
    read, tokens = sum(s["streamed_bytes"] for s in one), sum(s["generated_tokens"] for s in one)
    seconds, waited = (sum(s[f"stream_{n}_seconds"] for s in one) for n in ("read", "wait"))
    print(
        f"T = {temperature:g} {policy} over plain decoding as the system reads: "
        f"{geometric_mean(means.values()):.2f}x |",
        ", ".join(f"{name} {mean:.2f}x" for name, mean in sorted(means.items())),
        f"| {read / max(1, tokens) / 1e6:.0f} MB a token at {read / max(seconds, 1e-9) / 1e6:.0f} MB/s,"
        f" {1 - waited / max(seconds, 1e-9):.0%} hidden",
    )
EOF
