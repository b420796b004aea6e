# A program codes rows: its bytes are counted, the codes decode with it alone, and its faults are one sentence each.
set -e
. src/test/cli/numpy.sh
# The example of the manual page, with a table, and faults on demand.
{ echo "#!$(command -v $python)"; sed -n '/^import numpy/,/^Int8/p' src/man/kvcodec-exec.7 | sed 's/\\//g'; } >int8.py
chmod +x int8.py
sed -e 's/^Int8().run()/class Faulty(Int8):/' int8.py >faulty.py
cat >>faulty.py <<'PYTHON'
    surveys = True
    largest = 0
    def begin(self, arguments):
        self.fault = arguments
        if arguments == "print": print("said to the user", flush=True)
    def observe(self, rows, where):
        self.largest = max(self.largest, np.abs(rows).max())
    def learn(self, where):
        return b"\1\2\3"
    def encode(self, rows, where, table):
        assert table == b"\1\2\3" and np.abs(rows).max() <= self.largest
        if self.fault == "end": raise SystemExit(5)
        if self.fault == "sleep": import time; time.sleep(60)
        if self.fault == "raise": return {}[where.side]
        return super().encode(rows, where, table)
    def decode(self, data, where, table):
        rows = super().decode(data, where, table)
        if self.fault == "nan": rows[1, 0, 0] = np.nan
        return rows[:-1] if self.fault == "short" else rows
Faulty().run()
PYTHON

kvcodec encode data/kv.h5 --codec exec --book int8.py --quiet -o codes.h5 --json |
  jq -c '[.bits_per_value > 8, .bits_per_value_with_book > .bits_per_value]'
kvcodec decode codes.h5 --book int8.py --quiet -o decoded.h5 >/dev/null
kvcodec eval-recon data/kv.h5 decoded.h5 --json --quiet | jq -c '[.. | .snr_db? | numbers] | [length > 0, all(. > 30)]'
kvcodec encode data/kv.h5 --codec exec --book faulty.py --block 16 --sink 1 --quiet --verify -o learned.h5 >/dev/null
kvcodec info learned.h5 | grep -E '/(table|tail|sink|blocks) ' | awk '{ print $1, $2, $4 }' | sort -u | head -8
kvcodec encode data/kv.h5 --append learned.h5 --book faulty.py --replace --quiet -o grown.h5 >/dev/null && echo grown
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 128 --prefix 64 --max-documents 2 \
  --codec exec:book=int8.py --codec exec:book=int8.py,rope=undo --codec exec:book=faulty.py,block=16 \
  --quiet --json | jq -c '[.settings[] | .bits_per_value > 8 and .kl.mean < 0.001]'

set +e # refusals fail, and say so themselves
. src/test/cli/refused.sh
# Digests are those of the Python that is there.
said() { refused "$@" | sed -E 's/[0-9a-f]{32}/DIGEST/g; s/\.no\.h5\.[^:]*tmp/TEMPORARY/'; }
for fault in end sleep raise nan short; do
  said encode data/kv.h5 --codec exec --book faulty.py --arguments $fault --seconds 8 --verify --quiet -o no.h5
done
kvcodec encode data/kv.h5 --codec exec --book faulty.py --arguments print --quiet -o printed.h5 >/dev/null
said encode data/kv.h5 --codec exec --quiet -o no.h5
said encode data/kv.h5 --codec exec --book int8.py --embed-book --quiet -o no.h5
said encode data/kv.h5 --codec exec --book int8.py --total-bits 3 --quiet -o no.h5
said decode codes.h5 --quiet -o no.h5
said decode codes.h5 --book faulty.py --quiet -o no.h5
printf 'not a program\n' >text
said encode data/kv.h5 --codec exec --book text --quiet -o no.h5
printf '#!/bin/sh\necho hello; exec 2>/dev/null; cat >/dev/null\n' >chatty && chmod +x chatty
said encode data/kv.h5 --codec exec --book chatty --quiet -o no.h5
said encode data/kv.h5 --codec exec --book /bin/true --quiet -o no.h5
printf '#!/bin/sh\nexec <&- >&-; exec sleep 600\n' >deaf && chmod +x deaf
said encode data/kv.h5 --codec exec --book deaf --quiet -o no.h5
