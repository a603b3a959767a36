#!/bin/sh
# convert.sh CONVERSION NUMBER ...: print each number converted, with two decimals.
# An unknown conversion ends with exit code 2.
set -eu

f_to_c() { awk -v x="$1" 'BEGIN { printf "%.2f\n", (x - 32) * 5 / 9 }'; }
km_to_mi() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.621371 }'; }
ft_to_m() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.3048 }'; }
m_to_ft() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x / 0.3048 }'; }
lb_to_kg() { awk -v x="$1" 'BEGIN { printf "%.2f\n", x * 0.45359237 }'; }

conversion=$1
shift
case $conversion in
  f-c | km-mi | ft-m | m-ft | lb-kg) ;;
  *) echo "convert.sh: unknown conversion: $conversion" >&2; exit 2 ;;
esac
for number in "$@"; do
  case $conversion in
    f-c) f_to_c "$number" ;;
    km-mi) km_to_mi "$number" ;;
    ft-m) ft_to_m "$number" ;;
    m-ft) m_to_ft "$number" ;;
    lb-kg) lb_to_kg "$number" ;;
  esac
done
