#!/usr/bin/env bash
# Removes the files that install.sh installed; see --help.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/scripts/install.d/node"

usage() {
  cat <<'END'
Usage: scripts/uninstall.sh [OPTION]...     as root

Removes the driver, then stops and removes flexd. Refuses while volumes of the
driver are mounted. The configuration stays, and the records of what was
formatted, which keep data safe should flexd come back.

  --driver-only        the driver alone
  --purge              the configuration too; never the records
  --plugin-dir DIR     kubelet's volumePluginDir; without it, asked of kubelet
  --driver VENDOR/NAME as volumes name the driver (flexd/lvm)
  --root DIR           remove below DIR, such as an image; stops nothing
  --dry-run            only say what would be done
  -h, --help           this
END
}

root='' plugin_dir='' driver=flexd/lvm driver_only='' purge='' dry=''
while [ $# -gt 0 ]; do
  option=$1
  shift
  case $option in
    --plugin-dir | --driver | --root)
      [ $# -gt 0 ] || die "$option needs a value" "see --help"
      value=$1
      shift
      ;;
    --plugin-dir=* | --driver=* | --root=*)
      value=${option#*=} option=${option%%=*}
      ;;
  esac
  case $option in
    --plugin-dir) plugin_dir=$value plugin_why=given ;;
    --driver) driver=$value ;;
    --root) root=$value ;;
    --driver-only) driver_only=yes ;;
    --purge) purge=yes ;;
    --dry-run) dry=yes ;;
    -h | --help) usage && exit ;;
    *) die "there is no option $option" "see --help" ;;
  esac
done

# remove FILE
remove() {
  [ -e "$1" ] || [ -L "$1" ] || return 0
  ! act "remove $1" || rm -f "$1"
}

# remove_driver unlinks the executable first: that is what kubelet understands. A
# dotfile that went before it would change what init answers.
remove_driver() {
  [ -d "$dir" ] || { say "none: $dir" && return; }
  remove "$exe"
  remove "$dir/.$name.init.json"
  [ -n "$dry" ] || rm -f "$dir/.$name.new" "$dir/..$name.new.init.json"
  if [ -n "$dry" ]; then
    say "would remove $dir if it is empty then"
  elif rmdir "$dir" 2>/dev/null; then
    say "remove $dir"
  else
    say "keep: $dir, since it has other files: $(ls -A "$dir")"
  fi
}

remove_flexd() {
  local stop=() config=$root/etc/flexd/flexd.yaml state=/var/lib/flexd units=$root/usr/local/lib/systemd/system file
  if [ -r "$config" ]; then
    file=$(sed -nE "s/^stateDir:[[:space:]]*[\"']?([^\"'#]*[^\"'#[:space:]]).*/\1/p" "$config")
    state=${file:-$state}
  fi
  for file in flexd-driver.socket flexd-status.socket; do
    [ ! -e "$units/$file" ] || stop+=("$file") # an earlier version has none
  done
  stop+=(flexd.service)
  if has_systemd && systemctl -q cat flexd >/dev/null 2>&1; then
    # The sockets first: they would start flexd again.
    ! act "systemctl disable --now ${stop[*]}" || systemctl -q disable --now "${stop[@]}" ||
      die "flexd could not be stopped; the driver is removed, flexd is not" "why: journalctl -u flexd; then run this again"
  fi
  for file in "${stop[@]}"; do remove "$units/$file"; done
  remove "$root/usr/local/bin/flexd"
  if has_systemd && [ -z "$dry" ]; then systemctl daemon-reload; fi
  remove "$root/etc/udev/rules.d/12-flexd.rules"
  [ -n "$dry" ] || reload_udev
  if [ -n "$purge" ]; then
    remove "$config"
    [ -n "$dry" ] || rmdir "$root/etc/flexd" 2>/dev/null || true
  elif [ -e "$config" ]; then
    say "keep: $config (--purge removes it)"
  fi
  [ ! -d "$root$state" ] ||
    say "keep: $root$state: these records say which volumes hold data and are never to be formatted; remove them with the volumes"
}

check_driver "$driver"
check_root
find_kubelet
[ -n "$plugin_dir" ] || find_plugin_dir
check_plugin_dir
[ -n "$dry" ] || [ ! -d "${plugins%/*}" ] || lock
in_use=$(mounted)
[ -z "$in_use" ] ||
  die "volumes of $driver are mounted, and without the driver kubelet could not unmount them:
$in_use" "drain the node (kubectl drain), see that these are gone, and run this again"
report "driver" "$driver"
report "plugin directory" "$plugin_dir ($plugin_why)"
remove_driver
if [ -z "$driver_only" ]; then remove_flexd; fi
