#!/bin/sh
# convert.sh CONVERSION [NUMBER ...]: print each number converted, with two decimals.
# Without a number, numbers are read from standard input, one per line.
# An unknown conversion ends with exit code 2.
set -eu

f_to_c() { awk -v x="$1" 'BEGIN { printf "%.2f\n", (x - 32) * 5 / 9 }'; }
km_to_mi() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.621371 }'; }
ft_to_m() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.3048 }'; }
m_to_ft() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x / 0.3048 }'; }
lb_to_kg() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.45359237 }'; }

convert() {
  case $1 in
    f-c) f_to_c "$2" ;;
    km-mi) km_to_mi "$2" ;;
    ft-m) ft_to_m "$2" ;;
    m-ft) m_to_ft "$2" ;;
    lb-kg) lb_to_kg "$2" ;;
  esac
}

conversion=$1
shift
case $conversion in
  f-c | km-mi | ft-m | m-ft | lb-kg) ;;
  *) echo "convert.sh: unknown conversion: $conversion" >&2; exit 2 ;;
esac
if [ $# -eq 0 ]; then
  while read -r number; do convert "$conversion" "$number"; done
fi
for number in "$@"; do convert "$conversion" "$number"; done
