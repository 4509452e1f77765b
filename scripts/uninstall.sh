#!/usr/bin/env bash
# Removes what install.sh installed; see --help.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
here=$(realpath "$(dirname "$(realpath "$0")")/..")
. "$here/scripts/install.d/common"

usage() {
  cat <<'END'
Usage: scripts/uninstall.sh [OPTION]...     as root

Removes the driver, then stops and removes flexd. Refuses while volumes of the
driver are mounted. The configuration stays, and the records of what was
formatted, which keep data safe should flexd come back. Volumes stay as they are.

  --purge              the configuration too; never the records
  --prefix DIR         where flexd is installed; without it, as its unit says
  --plugin-dir DIR     kubelet's volumePluginDir; without it, from kubelet's settings
  --bin DIR            the directory of a flexd, if none is installed (bin, beside scripts)
  --root DIR           remove below DIR, such as an image; stops nothing
  --dry-run            only print the steps
  -h, --help           this
END
}

root='' prefix='' purge='' dry='' value=- bin=$here/bin driver_options=()
while [ $# -gt 0 ]; do
  option=$1
  shift
  case $option in
    --plugin-dir | --prefix | --bin | --root)
      [ $# -gt 0 ] || die "$option needs a value" "see --help"
      value=$1
      shift
      ;;
    --plugin-dir=* | --prefix=* | --bin=* | --root=*)
      value=${option#*=} option=${option%%=*}
      ;;
  esac
  [ -n "$value" ] || die "$option needs a value" "see --help"
  case $option in
    --plugin-dir) driver_options+=("$option" "$value") ;;
    --prefix) prefix=$value ;;
    --bin) bin=$value ;;
    --root) root=$value ;;
    --purge) purge=yes ;;
    --dry-run) dry=yes ;;
    -h | --help) usage && exit ;;
    *) die "there is no option $option" "see --help" ;;
  esac
done

# remove FILE
remove() {
  [ -n "$dry" ] || rm -rf "${1%/*}/.${1##*/}.new" # of an installation that was killed
  [ -e "$1" ] || [ -L "$1" ] || return 0
  ! act "remove $1" || rm -f "$1"
}

remove_driver() {
  local flexd=$root$prefix/bin/flexd
  [ -x "$flexd" ] || flexd=$bin/flexd
  [ -x "$flexd" ] || die "$root$prefix/bin/flexd is missing, which removes the driver" "give --bin the directory of a flexd"
  "$flexd" driver remove --root "${root:-/}" "${driver_options[@]}" ${dry:+--dry-run}
}

remove_flexd() {
  local stop=() file
  for file in "${units[@]}"; do
    [ ! -e "$unit_dir/$file" ] || stop+=("$file")
  done
  if [ ${#stop[@]} -gt 0 ] && has_systemd; then
    # The sockets first: they would start flexd again.
    ! act "systemctl disable --now ${stop[*]}" || systemctl -q disable --now "${stop[@]}" ||
      die "flexd could not be stopped; the driver is removed, flexd is not" "why: journalctl -u flexd; then run this again"
  fi
  remove "$root$prefix/lib/flexd/flexdriver"
  [ -n "$dry" ] || rmdir "$root$prefix/lib/flexd" 2>/dev/null || true
  remove "$root$prefix/bin/flexd"
  # Last: the units contain the prefix, which a repeated run needs.
  for file in "${stop[@]}"; do remove "$unit_dir/$file"; done
  if has_systemd && [ -z "$dry" ]; then systemctl daemon-reload; fi
  remove "$root/etc/udev/rules.d/12-flexd.rules"
  [ -n "$dry" ] || reload_udev
}

# report_rest removes the configuration with --purge, and lists the files that stay.
report_rest() {
  local state=/var/lib/flexd file
  if [ -r "$config" ]; then
    file=$(sed -nE "s/^stateDir:[[:space:]]*[\"']?([^\"'#]*[^\"'#[:space:]]).*/\1/p" "$config")
    state=${file:-$state}
  fi
  if [ -n "$purge" ]; then
    remove "$config"
    [ -n "$dry" ] || rmdir "$root/etc/flexd" 2>/dev/null || true
  elif [ -e "$config" ]; then
    say "keep: $config (--purge removes it)"
  fi
  for file in "$config".before*; do
    [ ! -e "$file" ] || say "keep: $file"
  done
  [ ! -d "$root$state" ] ||
    say "keep: $root$state: these records say which volumes hold data and are never to be formatted; remove them with the volumes"
  [ ! -d "$root/run/flexd" ] || say "keep: $root/run/flexd until the next boot"
  say "keep: every logical volume and sparse file, with its data"
}

check_root
config=$root/etc/flexd/flexd.yaml
check_package
[ -n "$prefix" ] || prefix=$(installed_prefix)
prefix=${prefix:-/usr/local}
set_prefix
for file in "$prefix/bin/flexd" "$prefix/lib/flexd/flexdriver" "${unit_dir#"$root"}/flexd.service" /etc/flexd/flexd.yaml /etc/udev/rules.d/12-flexd.rules; do
  check_place "$file"
done
lock
remove_driver
remove_flexd
report_rest
