#!/bin/sh
# Stands for the program `slipstream` in tests of `slipnet operate`: run --config DIR/node.yaml. It notes in DIR/log when it is ready, and
# when it is asked to end; in DIR/programs by which name it was started.
dir=$(dirname "$3")
trap 'echo term >>"$dir/log"; exit 0' TERM
mkdir -p "$dir/data"
echo "start $$" >>"$dir/log"
echo "${0##*/}" >>"$dir/programs"
while :; do sleep 0.02; done
