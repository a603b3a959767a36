#!/bin/sh
# convert.sh CONVERSION NUMBER ...: print each number converted, with two decimals.
set -eu

celsius() { awk -v x="$1" 'BEGIN { printf "%.2f\n", (x - 32) * 5 / 9 }'; }
km_to_mi() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.621371 }'; }

conversion=$1
shift
for number in "$@"; do
  case $conversion in
    f-c) celsius "$number" ;;
    km-mi) km_to_mi "$number" ;;
  esac
done
