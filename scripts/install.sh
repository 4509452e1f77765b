#!/usr/bin/env bash
# Installs flexd and its driver on this node; see --help.
set -euo pipefail
umask 022
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
here=$(realpath "$(dirname "$(realpath "$0")")/..")
. "$here/scripts/install.d/common"

usage() {
  cat <<'END'
Usage: scripts/install.sh [OPTION]...     as root, after `make build` or in an unpacked bundle

Installs or upgrades flexd, its systemd units, its udev rule, a first configuration,
and the driver that kubelet runs. Safe to run again, and while pods run: existing
configuration stays, calls that run go on. Kubelet gets the driver only when the
configuration has a volume group.

  --config FILE        install FILE as the configuration, after checking it
  --replace-config     replace an existing configuration, and keep a copy of it
  --prefix DIR         install DIR/bin/flexd and DIR/lib/flexd. Without it: as installed
                       before; else /usr/local, or /opt where /usr is read-only (Flatcar)
  --bin DIR            the directory of flexd and flexdriver (bin, beside scripts)
  --root DIR           install below DIR, such as an image; starts nothing
  --no-start           start and restart nothing
  --dry-run            only print the steps
  -h, --help           this

Options for the driver, see `flexd driver --help`:
  --attach=true|false  the driver's mode. Without it: as installed before; else true
                       where kubelet attaches by itself, and false elsewhere
  --plugin-dir DIR     kubelet's volumePluginDir; without it, from kubelet's settings
  --replace-driver     replace another program of that name; `flexd driver restore` puts
                       it back

Kubelet's names of volumes depend on the mode. It cannot change while volumes are mounted.

The node needs bash, coreutils and util-linux. Without systemd everything is installed, and
flexd has to be started by hand. Talos is not supported: it has no shell and no systemd, and
programs cannot be installed on the host.
END
}

root='' prefix='' config_from='' replace_config='' start=yes dry='' value=- bin=$here/bin plugin_dir=() driver_options=()
while [ $# -gt 0 ]; do
  option=$1
  shift
  case $option in
    --attach | --plugin-dir | --config | --prefix | --bin | --root)
      [ $# -gt 0 ] || die "$option needs a value" "see --help"
      value=$1
      shift
      ;;
    --attach=* | --plugin-dir=* | --config=* | --prefix=* | --bin=* | --root=*)
      value=${option#*=} option=${option%%=*}
      ;;
  esac
  [ -n "$value" ] || die "$option needs a value" "see --help"
  case $option in
    --attach) driver_options+=("$option" "$value") ;;
    --plugin-dir) plugin_dir=("$option" "$value") ;;
    --replace-driver) driver_options+=("$option") ;;
    --config) config_from=$value ;;
    --replace-config) replace_config=yes ;;
    --prefix) prefix=$value ;;
    --bin) bin=$value ;;
    --root) root=$value ;;
    --no-start) start='' ;;
    --dry-run) dry=yes ;;
    -h | --help) usage && exit ;;
    *) die "there is no option $option" "see --help" ;;
  esac
done

# check_programs refuses executables that do not run here.
check_programs() {
  local file said
  for file in flexd flexdriver; do
    [ -x "$bin/$file" ] || die "$bin/$file is missing or not executable" "run \`make build\` first, or give --bin"
  done
  bin=$(realpath "$bin")
  said=$("$bin/flexd" version 2>&1) && return
  die "$bin/flexd does not run here: it is for $(architecture "$bin/flexd"), and this machine is $(uname -m): $said" \
    "use a build or bundle for $(uname -m); and if that is what it is, see whether $bin is mounted noexec: findmnt -T $bin"
}

# architecture FILE: the one of an executable, as uname -m names it.
architecture() {
  case $(od -An -tx1 -j18 -N2 "$1" | tr -d ' ') in
    3e00) echo x86_64 ;;
    b700) echo aarch64 ;;
    2800) echo armv7l ;;
    f300) echo riscv64 ;;
    1500) echo ppc64le ;;
    0016) echo s390x ;;
    0300) echo i686 ;;
    *) echo "an unknown architecture" ;;
  esac
}

# choose_prefix sets prefix, and refuses one in which nothing can be written or run.
choose_prefix() {
  local dir file was why=given
  was=$(installed_prefix)
  if [ -n "$was" ] && [ -n "$prefix" ] && [ "${prefix%/}" != "$was" ]; then
    die "flexd is installed in $was, and --prefix is $prefix" "leave out --prefix; or run scripts/uninstall.sh first"
  elif [ -n "$was" ]; then
    prefix=$was why="as before"
  elif [ -z "$prefix" ]; then
    prefix=/usr/local why=default
    if ! writable /usr/local; then prefix=/opt why="since $root/usr/local cannot be written"; fi
  fi
  set_prefix
  say "prefix             $prefix ($why)"
  for file in "$prefix/bin/flexd" "$prefix/lib/flexd/flexdriver" "${unit_dir#"$root"}/flexd.service" /etc/flexd/flexd.yaml /etc/udev/rules.d/12-flexd.rules; do
    check_place "$file"
    dir=${file%/*}
    writable "$dir" || die "$(nearest "$dir") cannot be written: $(findmnt -no OPTIONS -T "$(nearest "$dir")")" \
      "run this as root; where it is on a read-only filesystem, give another --prefix, such as /opt"
  done
  dir=$(nearest "$prefix/bin")
  case ,$(findmnt -no OPTIONS -T "$dir" || true), in
    *,noexec,*) die "$dir is on a mount with noexec: flexd could not run there" "mount -o remount,exec $(findmnt -no TARGET -T "$dir"); or give another --prefix" ;;
  esac
}

# nearest DIR: the part of it that exists, below $root.
nearest() {
  local dir=$root$1
  while [ ! -e "$dir" ]; do dir=${dir%/*}; done
  printf '%s\n' "${dir:-/}"
}

# writable DIR: it is, or could be made. Root is refused only by a read-only filesystem.
writable() { [ -w "$(nearest "$1")" ]; }

# place MODE FILE DEST: installs by rename. Sets changed unless DEST is the same already.
place() {
  if cmp -s "$2" "$3" && [ "$(stat -c %a "$3")" = "$1" ] && [ -O "$3" ]; then
    say "same: $3"
  else
    put "$1" "$3" <"$2"
  fi
}

# place_text MODE TEXT DEST
place_text() {
  if [ -e "$3" ] && [ "$2" = "$(cat "$3")" ] && [ "$(stat -c %a "$3")" = "$1" ]; then
    say "same: $3"
  else
    put "$1" "$3" <<<"$2"
  fi
}

# put MODE DEST: installs its standard input.
put() {
  local new=${2%/*}/.${2##*/}.new
  changed=yes
  act "write $2" || return 0
  mkdir -p "${2%/*}"
  rm -rf "$new"
  if ! install -m "$1" /dev/stdin "$new" || ! sync "$new" || ! mv -fT "$new" "$2"; then
    rm -f "$new"
    die "$2 cannot be written, and is as before" "see the error above; then run this again"
  fi
  if [ -z "$root" ] && [ -e /sys/fs/selinux/enforce ] && command -v restorecon >/dev/null; then restorecon "$2" || true; fi
}

# check_config checks the new or the installed configuration, and sets checked to its file ("": there is
# none) and groups ("": no volume group).
check_config() {
  local said
  checked='' groups=''
  [ ! -e "$config" ] || checked=$config
  if [ -n "$config_from" ]; then
    [ -r "$config_from" ] || die "--config $config_from cannot be read" "see --help"
    [ -f "$config_from" ] || die "--config $config_from is not a regular file, and is read more than once" "write it to a file"
    [ -z "$checked" ] || [ -n "$replace_config" ] || cmp -s "$config_from" "$config" ||
      die "$config is another configuration than $config_from; nothing was changed" \
        "see what differs: diff $config $config_from; then leave out --config, or give --replace-config, which keeps a copy"
    checked=$config_from
  fi
  [ -n "$checked" ] || return 0
  said=$("$bin/flexd" config --check "$checked" 2>&1) ||
    die "the new flexd refuses the configuration; nothing was changed:
$said" "correct $checked, and run this again"
  case $said in *"volume groups: none"*) ;; *) groups=yes ;; esac
}

install_config() {
  local roots
  if [ -n "$config_from" ] && ! cmp -s "$config_from" "$config"; then
    if [ -e "$config" ] && act "keep the former configuration as $config.before"; then
      cp -p --backup=numbered "$config" "$config.before"
      sync "$config.before"
    fi
    place 600 "$config_from" "$config"
  elif [ -e "$config" ]; then
    say "keep: $config"
  else
    # The example's groups are comments: the administrator has not allowed any group yet.
    roots=$("$bin/flexd" driver --root "${root:-/}" "${plugin_dir[@]}" | sed -n 's/.*: \(kubeletRoots: \[.*\]\)$/\1/p')
    place_text 600 "$(sed '/^volumeGroups:/,$ s/^./# &/' "$here/examples/flexd.yaml")${roots:+$'\n\n'$roots}" "$config"
  fi
}

install_units() {
  local unit
  for unit in "${units[@]}"; do
    place_text 644 "$(sed "s|/usr/local/bin/flexd|$prefix/bin/flexd|" "$here/examples/$unit")" "$unit_dir/$unit"
    [ "$unit_dir" = "$root/etc/systemd/system" ] || [ ! -e "$root/etc/systemd/system/$unit" ] ||
      say "note: /etc/systemd/system/$unit hides ${unit_dir#"$root"}/$unit; remove it if it is none of your own"
  done
}

# install_rule installs the udev rule.
install_rule() {
  local text changed=''
  text=$("$bin/flexd" udev --config "${checked:-/dev/null}" 2>&1) || {
    say "note: no udev rule: $text"
    return
  }
  place_text 644 "$text" "$root/etc/udev/rules.d/12-flexd.rules"
  [ -z "$changed" ] || [ -n "$dry" ] || reload_udev
}

# start_flexd starts the installed unit. Calls of kubelet wait for flexd.
start_flexd() {
  if [ -z "$start" ] || [ -n "$root" ]; then
    say "start: nothing; flexd runs as: systemctl enable --now flexd"
    return
  elif ! has_systemd; then
    say "start: nothing: no systemd runs here. Start this at each boot, before kubelet, as root, on the host's mount namespace:
  $prefix/bin/flexd serve --config $config"
    return
  fi
  [ -z "$changed" ] || ! act "systemctl daemon-reload" || systemctl daemon-reload
  if ! systemctl -q is-active flexd; then
    ! act "systemctl enable --now flexd" || systemctl -q enable --now flexd || not_started
  elif [ -n "$changed" ]; then
    ! act "systemctl restart flexd (kubelet's calls wait for it; mounts stay)" || systemctl restart flexd || not_started
  fi
}

not_started() { die "flexd is installed but did not start; the driver is unchanged" "why: journalctl -u flexd; then run this again"; }

# flexd_driver OPTION...: `flexd driver install`, or, while there is no volume group, only an
# upgrade.
flexd_driver() {
  if [ -z "$checked" ]; then
    "$bin/flexd" driver status --root "${root:-/}" "${plugin_dir[@]}" "${driver_options[@]}"
    return
  fi
  [ -n "$groups" ] || set -- "$@" --upgrade
  "$bin/flexd" driver install --root "${root:-/}" --config "$checked" "${plugin_dir[@]}" "${driver_options[@]}" "$@"
}

install_driver() {
  if [ -n "$dry" ]; then flexd_driver --dry-run; else flexd_driver; fi
  [ -z "$groups" ] || return 0
  say "
Kubelet gets no driver while the configuration has no volume group. To finish, edit
$config ($prefix/bin/flexd config explains every key), then:"
  [ -n "$root" ] || say "  $prefix/bin/flexd config --check $config && systemctl restart flexd"
  say "  $prefix/bin/flexd driver install${root:+ --root $root}${plugin_dir:+ ${plugin_dir[*]@Q}}${driver_options:+ ${driver_options[*]@Q}}"
  [ -n "$root" ] || say "  $prefix/bin/flexd doctor"
}

check_root
config=$root/etc/flexd/flexd.yaml
check_programs
check_package
choose_prefix
check_config
flexd_driver --dry-run >/dev/null # refuses before anything is changed
lock
changed=''
install_config
[ -n "$dry" ] || [ -z "$checked" ] || checked=$config
place 755 "$bin/flexd" "$root$prefix/bin/flexd"
place 755 "$bin/flexdriver" "$root$prefix/lib/flexd/flexdriver"
install_units
install_rule
start_flexd
install_driver
