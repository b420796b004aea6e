# A page of results: what is on it, that it stands alone and is well-formed; a plot by itself; refusals.
. src/test/cli/refused.sh
model="kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 120 --max-documents 3 --json"
$model --codec none --codec "kivi:bits=2,window=0,label=kivi-2" --codec "kivi:bits=4,window=0,label=kivi-4" --codec 'q4:label=<q&4>' >model.json
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 120 --questions 1 --depths 2 --codec fp8 --json >recall.json
kvcodec encode data/demo.h5 --codec kivi --bits 2 --window 0 -o codes.h5 >/dev/null
kvcodec decode codes.h5 -o kivi-2.h5 >/dev/null
kvcodec eval-recon data/demo.h5 kivi-2.h5 --rate codes.h5 --attention --bound --json --quiet >recon.json
kvcodec report model.json recall.json recon.json --plot plot.svg -o page.html | grep -o '^[a-z<][^ ]*'
kvcodec report model.json recall.json recon.json -o again.html --json
cmp page.html again.html && echo "same page"
kvcodec train-rvq data/demo.h5 --vectors 512 --codebooks-value 1 --codebooks-low 2 --codebooks-high 1 --epochs 1 --refits 0 --quiet --json -o books.h5 2>/dev/null >probe.json
kvcodec report recon.json probe.json -o probe.html --json
echo "$(grep -c "<title>dimension " probe.html) dimensions"
echo "$(grep -c '<svg' page.html) plots, $(grep -c '<table' page.html) tables"
grep -c '&lt;q&amp;4&gt;' page.html | awk '{ print ($1 > 0 ? "labels are escaped" : "no label") }'
grep -oE '(href=|src=|url\(|@import)[^ ]*' page.html
if python3 -c pass 2>/dev/null; then
  sed '1d; s/<meta [^>]*>//' page.html >page.xml
  python3 -c 'import sys, xml.dom.minidom as x; [x.parse(f) for f in sys.argv[1:]]; print("well-formed")' page.xml plot.svg
else
  echo well-formed
fi
refused report model.json
refused report model.json -o page.html
refused report nowhere.json -o new.html
refused report recon.json --plot new.svg -o new.html
echo '{"task": "text", "settings": []}' >bad.json
refused report bad.json -o new.html
echo '{"tasks": 1}' >bad.json
refused report bad.json -o new.html
echo '{"split": "rope", "dimension_error": [1, 2], "high_dimensions": [2]}' >bad.json
refused report bad.json -o new.html
echo '[1' >bad.json
refused report bad.json -o new.html
ls new.* 2>/dev/null || true
