# Tasks with answers, which the model writes itself: each family, from caches that grow, and questions of a file.
. src/test/cli/refused.sh
ask() { kvcodec eval-model --model src/data/demo-model --text src/data/text/tempest.txt --quiet "$@"; }
# The demo model has learned to find one number, in a cache that grows through a codec too; of several it writes the first.
ask --task recall --lengths 300 --depths 2 --questions 2 --stream 1 --codec q4 --codec kvcomp --json >recall.json
jq -c '[.questions, .uncompressed.recall.share, (.settings[] | .recall.share), .uncompressed.recall.answers == .settings[0].recall.answers]' recall.json
jq -c '[.expected, .uncompressed.recall.answers] | map(flatten)' recall.json
# The document has the expected strings; the same seed asks the same.
for task in "variables --keys 2 --asked 2 --values 3" "common --values 2" "frequent"; do
  ask --task $task --lengths 200,400 --questions 1 --codec none:dtype=f32 --written 8 --json >made.json
  jq -c '[.task, .documents, .questions, .values_per_key, .expected[0], (.uncompressed.recall.cells | map(.length)), .uncompressed.recall == (.settings[0].recall | del(.cells[].bits_per_value))]' made.json
  ask --task $task --lengths 200,400 --questions 1 --codec none:dtype=f32 --written 8 --json | diff - made.json | grep -v 'seconds\|created\|^[0-9-]'
done
ask --task variables --lengths 200 --questions 2 --codec q4 | sed 's/; [0-9].*s$/; TIME/; s/^uncompressed .*/uncompressed/; s/^q4 .*/q4/'
printf '1\tWho is the master of the ship?\tAlonso\n2\tWhat does one cry?\tboatswain\n' >answers
head -c 1500 src/data/text/tempest.txt >one
head -c 3000 src/data/text/tempest.txt | tail -c 1500 >two
kvcodec eval-model --model src/data/demo-model --text one two --task questions --answers answers --codec fp8 --json --quiet |
  jq -c '[.documents, .questions, .expected, (.settings[0].recall | (.share, .f1 | type), (.answers | map(contains("\n"))))]'
kvcodec report recall.json made.json -o page.html --json | jq .recall_settings
refused eval-model --model src/data/demo-model --text src/data/text/tempest.txt --task questions --codec none
refused eval-model --model src/data/demo-model --text src/data/text/tempest.txt --task questions --codec none --answers answers
refused eval-model --model src/data/demo-model --text src/data/text/tempest.txt --task common --codec none --depths 2
refused eval-model --model src/data/demo-model --text src/data/text/tempest.txt --task common --codec none --lengths 150
