#!/bin/sh
# convert.sh CONVERSION [NUMBER ...]: print each number converted, with two decimals.
# Without a number, numbers are read from standard input, one per line.
set -eu

celsius() { awk -v x="$1" 'BEGIN { printf "%.2f\n", (x - 32) * 5 / 9 }'; }
km_to_mi() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.621371 }'; }

convert() {
  case $1 in
    f-c) celsius "$2" ;;
    km-mi) km_to_mi "$2" ;;
  esac
}

conversion=$1
shift
if [ $# -eq 0 ]; then
  while read -r number; do convert "$conversion" "$number"; done
fi
for number in "$@"; do convert "$conversion" "$number"; done
