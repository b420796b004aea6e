# A page of results: its content, plots with the measurements at the right places, its conclusions, that it is self-contained and
# well-formed; a separate plot; refusals.
. src/test/cli/refused.sh
here=src/test/cli/cases/report
model="kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 120 --max-documents 3 --json"
$model --codec none --codec "kivi:bits=2,window=0,sink=0,label=kivi-2" --codec "kivi:bits=4,window=0,sink=0,label=kivi-4" --codec 'q4:label=<q&4>' >model.json
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 120 --questions 1 --depths 2 --codec fp8 --json >recall.json
kvcodec encode data/demo.h5 --codec kivi --preset paper --bits 2 --window 0 -o codes.h5 >/dev/null
kvcodec decode codes.h5 -o kivi-2.h5 >/dev/null
kvcodec eval-recon data/demo.h5 kivi-2.h5 --rate codes.h5 --attention --bound --json --quiet >recon.json
kvcodec report model.json recall.json recon.json -o page.html | grep -oE '^(setting|none|kivi|<|fp8|recons)[^ ]*'
kvcodec report model.json recall.json recon.json -o again.html --json | sed '/conclusions/,$d'
sed 's/again.html/page.html/' again.html | cmp page.html - && echo "same page"
for form in csv markdown latex; do kvcodec report model.json recon.json --table $form | grep -E -e '---|setting|q&|q\\\\&|tabular|rule|^$' | cut -d ' ' -f -8; done
refused report model.json --table csv --plot plot.svg
kvcodec sensitivity --model src/data/demo-model --text src/LICENSE --chunk 64 --max-documents 2 --quiet --json -o noise.h5 >noise.json
kvcodec report noise.json -o noise.html --json | grep sensitivities
echo "$(grep -c '<title>keys of layer ' noise.html) layers of keys, $(grep -c '<title>values of layer ' noise.html) of values"
awk -f $here/on-axis.awk noise.html | awk '/, not / { print; next } { ++right } END { print right " points where the axes say" }'
echo "$(grep -c '<figure' page.html) plots, $(grep -c '<table' page.html) tables"
grep -c '&lt;q&amp;4&gt;' page.html | awk '{ print ($1 > 0 ? "labels are escaped" : "no label") }'
grep -oE '(href=|src=|url\(|@import)[^ ]*' page.html

# No value is replaced: neither a rise below 0, nor one whose interval contains 0, nor one of 0.
kvcodec report $here/made.json --plot plot.svg -o made.html | sed -n '/^Of/,$p'
awk -f $here/on-axis.awk plot.svg
# The second plot is of divergences, 0 too.
awk '/<figure>/ { ++figures } figures == 2' made.html >kl.svg
awk -f $here/on-axis.awk kl.svg
grep -o 'band, from [^,]*' plot.svg
for loss in 0.06 0; do kvcodec report $here/made.json --loss $loss -o - | grep -o '<p>[^<]*loss of [^ ]* nats per token; the smallest is [^ ]*'; done
sed 's/"mean": -0.004/"mean": 0.004/' $here/made.json >worse.json
kvcodec report worse.json --loss 0 --json -o worse.html | grep -o 'No setting.*'

# A label has one colour everywhere, that of its family, and shows the full setting; the page names the source of each result.
# signs PATTERN [PAGE]: how many marks of a colour there are, and how many different ones.
signs() { grep -oE "$1" "${2:-page.html}" | grep -oE '<(circle|i) class="c[0-9]"' | sort | uniq -c | awk '{ n += $1 } END { print n " signs, " NR " different" }'; }
echo "kivi-2 in plots: $(signs 'data-label="kivi-2".*<title>')"
echo "kivi-2 in tables: $(signs '<i class="c[0-9]"></i>kivi-2<')"
sed '1,/<h2>Settings/d' page.html >settings.html
echo "all labels: $(signs '<i .*' settings.html)"
echo "labels of lines: $(sed '/<figure>/,/<\/figure>/!d; /<\/figure>/q' page.html | grep -oE 'font-size="11" font-weight="600">[^<]*' | sed 's/.*>//' | tr '\n' ' ')"
grep -o '</i>kivi-2</th><td><code>.*</td>' page.html
grep -A 1 '<strong>m' page.html made.html | grep -oE 'Made by [^<]*|<code>.*'
sed 's/"command": "[^"]*",//; s/"generator": "[^"]*",//; s/"created": "[^"]*",//' $here/made.json >old.json
kvcodec report old.json -o - | grep -A 1 '<strong>old' | grep -oE '(Version|The command).*'
if python3 -c pass 2>/dev/null; then
  for page in page made; do sed '1d; s/<meta [^>]*>//' $page.html >$page.xml; done
  python3 -c 'import sys, xml.dom.minidom as x; [x.parse(f) for f in sys.argv[1:]]; print("well-formed")' page.xml made.xml plot.svg
else
  echo well-formed
fi
# The options of a selection are all shown, from any place; layers keep their numbers.
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 120 --max-documents 1 --json \
  --codec none:select=quest,budget-mass=0.9,label=quest --ratio 0.3 --first 9 --codec none:select=clusters,clusters=2,label=two >selected.json
kvcodec eval-recon data/demo.h5 kivi-2.h5 --layers 2-3 --json --quiet >some.json
sed 's/kivi-2/first/' recon.json >first.json
kvcodec report selected.json some.json first.json -o some.html >/dev/null
grep -oE '</i>(quest|two)</th><td><code>.*</td>' some.html
grep -oE ' title="(kivi-2|first), [KV] [0-9]+: .' some.html
# Values that lie in keys have no measures of their own.
kvcodec dump-kv --model src/test/golden/model/deepseek_v3-1 --tokens $here/ids --queries last:4 --dtype f32 --quiet -o latent.h5 >/dev/null
kvcodec encode latent.h5 --codec q4 --quiet -o latent-codes.h5 >/dev/null
kvcodec decode latent-codes.h5 --dtype f32 --quiet -o latent-q4.h5 >/dev/null
kvcodec eval-recon latent.h5 latent-q4.h5 --rate latent-codes.h5 --attention --bound --json --quiet >latent.json
kvcodec report latent.json -o latent.html | sed 's/[0-9][0-9.]*/N/g'
grep -oE ' title="latent-q4, [KV] [^:]*' latent.html | tr '\n' ' '
echo
kvcodec report latent.json first.json -o both.html >/dev/null
grep -oE ' title="latent-q4, V [^"]*' both.html

# Facts: a column for each length and depth of results that can be compared; others have separate tables.
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 120 --questions 1 --depths 2 --codec none --json >none.json
jq '.settings[0].recall.cells |= reverse' none.json >turned.json
jq '.settings[0].label = "few" | .settings[0].recall.cells |= [.[1] | .share = 0.5]' recall.json >few.json
kvcodec report recall.json turned.json few.json -o facts.html | tr -s ' -'
jq '.seed = 7' recall.json >seed.json
jq '.keys = 2' recall.json >keys.json
kvcodec report recall.json seed.json keys.json none.json -o facts.html --overwrite | grep -v '^[- ]*$' | sed 's/ *[0-9]*\.[0-9]* .*//'
grep -c '<h2>Answers' facts.html
# Layers with windows, whole or not, are other runs.
jq '.window_layers = "trim"' model.json >trim.json
kvcodec report model.json trim.json -o windows.html --json | jq -r '.conclusions[].of' | sed 's/.*bf16//'
sed 's/"bits_per_value_with_book": 3,/"bits_per_value_with_book": 4,/' src/test/cli/cases/report/made.json >book.json
kvcodec report book.json -o book.html >/dev/null
grep -o 'bits per value, without books\|With their books these take more' book.html made.html

refused report model.json
refused report model.json -o page.html
ln -s . here
for plot in new.html ./new.html "$PWD/new.html" here/new.html; do
  refused report model.json -o new.html --plot "$plot" --overwrite | sed "s:$PWD:DIR:"
done
refused report model.json -o - --plot -
refused report nowhere.json -o new.html
refused report recon.json --plot new.svg -o new.html
refused report model.json --loss -1 -o new.html
echo '{"task": "text", "settings": []}' >bad.json
refused report bad.json -o new.html
echo '{"tasks": 1}' >bad.json
refused report bad.json -o new.html
echo '[1' >bad.json
refused report bad.json -o new.html
sed 's/"half_width_95": 0.03/"half_width_95": -0.03/' $here/made.json >bad.json
refused report bad.json -o new.html
sed 's/"mean": 0.02,/"mean": 1e300,/' $here/made.json >bad.json
refused report bad.json -o new.html
sed 's/"documents": 9/"documents": -9/' $here/made.json >bad.json
refused report bad.json -o new.html
echo '{"model": {"model": "m"}, "layers": [{"key": 1}]}' >bad.json
refused report bad.json -o new.html
ls new.* 2>/dev/null || true
