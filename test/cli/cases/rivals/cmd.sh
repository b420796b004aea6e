# Methods of others as programs of exec: their bits and errors on made-up rows and some of them through the program.
set -e
. src/test/cli/numpy.sh
rivals=src/data/experiments/rivals
$python $rivals/check.py

rival() { # FILE ARGUMENTS
  { echo "#!$(command -v $python)"; cat $rivals/$1.py; } >$1
  chmod +x $1
  echo "exec:book=$1,arguments=$2,label=$1"
}
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 128 --prefix 64 --max-documents 2 --quiet --json \
  --codec "$(rival llama_cpp q4_0)" --codec "$(rival nvfp4 | sed 's/arguments=,//')" --codec "$(rival turboquant 4bit_nc-of-6)" \
  --codec "$(rival turboquant mse-4)" --codec "$(rival kvquant nuq4),sink=1" |
  jq -c '.settings[] | [.label, (.bits_per_value * 100 | round) / 100, .kl.mean < 0.02]'
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 128 --quiet --codec "$(rival llama_cpp q2_k)" 2>&1 |
  sed 's/.*ValueError: //'
