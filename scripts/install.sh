#!/usr/bin/env bash
# Installs flexd and its driver on this node; see --help.
#
# Kubelet loads a driver as soon as it appears, and calls `init` again after every event in
# its directory, except those of dotfiles. So the executable is checked first and then
# appears in one rename, and one installation causes one `init`.
set -euo pipefail
umask 022
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/scripts/install.d/node"

usage() {
  cat <<'END'
Usage: scripts/install.sh [OPTION]...     after `make build`, as root

Installs or upgrades flexd, its systemd units, its udev rule, a first configuration,
and the driver that kubelet runs. Safe to run again, and while pods run: existing
configuration stays, calls that run go on.

  --driver-only        the driver alone: for the controller manager's machine
  --attach=true|false  the driver's mode. Without it: as installed before; else true
                       where kubelet attaches by itself, and false elsewhere
  --plugin-dir DIR     kubelet's volumePluginDir; without it, asked of kubelet
  --driver VENDOR/NAME as volumes name the driver (flexd/lvm)
  --bin DIR            where flexd and flexdriver are (bin, beside scripts)
  --root DIR           install below DIR, such as an image; starts nothing
  --no-start           start and restart nothing
  --dry-run            only say what would be done
  -h, --help           this

The mode decides how kubelet names volumes. It cannot change while any is mounted.
END
}

root='' plugin_dir='' driver=flexd/lvm attach='' driver_only='' start=yes dry='' bin=$here/bin
while [ $# -gt 0 ]; do
  option=$1
  shift
  case $option in
    --attach | --plugin-dir | --driver | --bin | --root)
      [ $# -gt 0 ] || die "$option needs a value" "see --help"
      value=$1
      shift
      ;;
    --attach=* | --plugin-dir=* | --driver=* | --bin=* | --root=*)
      value=${option#*=} option=${option%%=*}
      ;;
  esac
  case $option in
    --attach) attach=$value ;;
    --plugin-dir) plugin_dir=$value plugin_why=given ;;
    --driver) driver=$value ;;
    --bin) bin=$value ;;
    --root) root=$value ;;
    --driver-only) driver_only=yes ;;
    --no-start) start='' ;;
    --dry-run) dry=yes ;;
    -h | --help) usage && exit ;;
    *) die "there is no option $option" "see --help" ;;
  esac
done

# choose_attach sets attach and attach_why, and refuses a change while volumes are mounted:
# kubelet would lose track of them.
choose_attach() {
  local was in_use fits why
  case $attach in
    true | false | '') ;;
    *) die "--attach=$attach: the mode is true or false" "see --help" ;;
  esac
  was=$(installed_mode)
  in_use=$(mounted)
  if [ -z "$was" ] && [ -n "$in_use" ]; then
    # Only attach:true has global mounts, and has one for each volume.
    case $in_use in */mounts/*) was=true ;; *) was=false ;; esac
  fi
  if [ -n "$attach" ]; then
    attach_why="as --attach says"
  else
    how_kubelet_attaches
    attach=${was:-$fits}
    if [ -z "$was" ]; then
      attach_why=$why
    elif [ "$was" = "$fits" ]; then
      attach_why="as before; $why"
    else
      attach_why="as before, though $why, for which $fits is meant: to change it, drain the node, then --attach=$fits"
    fi
  fi
  [ -z "$was" ] || [ "$attach" = "$was" ] || [ -z "$in_use" ] ||
    die "the mode cannot change from attach:$was to attach:$attach while volumes are mounted, since kubelet's names of volumes depend on it:
$in_use" "drain the node (kubectl drain), see that these are gone, and run this again"
}

# how_kubelet_attaches sets fits, the mode for it, and why.
how_kubelet_attaches() {
  local by
  one_kubelet "the way of attaching"
  by=$(flag enable-controller-attach-detach)
  [ -n "$by" ] || by=$(setting enableControllerAttachDetach)
  case $by in
    false | False | FALSE | f | F | 0) fits=true why="kubelet attaches by itself (enableControllerAttachDetach: false)" ;;
    *) fits=false why="kubelet leaves attaching to the controller manager, which with attach:false has nothing to do" ;;
  esac
}

# installed_mode: the mode of the installed driver, or nothing if there is none or the mode
# is unknown.
installed_mode() {
  if [ ! -e "$exe" ] && [ ! -e "$dot" ]; then
    return
  elif [ -e "$new" ] && [ ! -e "$new_dot" ]; then
    return # an installation was cut while it changed the mode
  elif [ ! -e "$dot" ]; then
    echo true # flexdriver's own default
    return
  fi
  case $(tr -d '[:space:]' <"$dot") in
    '{'*'"attach":false'*'}') echo false ;;
    '{'*'"attach":true'*'}') echo true ;;
    '{'*'"attach"'*) ;;
    '{'*'}') echo true ;;
  esac
}

# capabilities: the text of the dotfile. Other keys in it are kept.
capabilities() {
  local text=
  [ ! -e "$dot" ] || text=$(cat "$dot")
  case $(tr -d '[:space:]' <<<"$text") in
    '{'*'"attach":true'*'}' | '{'*'"attach":false'*'}')
      sed -E 's/("attach"[[:space:]]*:[[:space:]]*)(true|false)/\1'"$attach"'/' <<<"$text"
      ;;
    *) printf '{"attach": %s}\n' "$attach" ;;
  esac
}

# stage EXE: writes the new driver and its dotfile under hidden names, and syncs them. The
# dotfile is renamed first: an executable without a staged dotfile has its dotfile in place.
stage() {
  local staged_dot=${1%/*}/.${1##*/}.init.json
  capabilities >"$staged_dot"
  install -m 755 "$bin/flexdriver" "$1"
  sync "$staged_dot" "$1"
  check_init "$1"
}

# check_init EXE: checks the answer to init; kubelet reads stdout and stderr as one and
# accepts only one JSON object.
check_init() {
  local answer status=0 good="\{\"status\":\"Success\",\"capabilities\":\{([^{}]*,)?\"attach\":$attach(,[^{}]*)?\}\}$"
  answer=$(cd / && timeout --foreground 10 "$1" init 2>&1 </dev/null 9<&-) || status=$?
  [[ "$status $answer" =~ ^0\ $good ]] ||
    die "the new driver does not answer init as kubelet needs it (exit status $status); the old one stays. Its output:
$(head -c 1000 <<<"$answer")" "see that $bin/flexdriver is of this machine's kind (make build) and ${plugins%/*} not mounted noexec;
if it complains of its .init.json, correct or remove $dot"
}

made='' # set once the driver's directory is this installation's
old=''  # the dotfile that is being replaced

# unstage removes the staged files of an incomplete installation, this one or a killed one.
unstage() {
  rm -f "$new" "$new_dot"
  unstage_outside
  [ -z "$made" ] || rmdir "$dir" 2>/dev/null || true
}

unstage_outside() {
  [ -d "$outside" ] || return 0
  rm -f "$outside/$name" "$outside/.$name.init.json"
  rmdir "$outside"
}

install_driver() {
  local text
  text=$(capabilities)
  if [ ! -e "$new" ] && [ -x "$exe" ] && [ ! -L "$exe" ] && cmp -s "$bin/flexdriver" "$exe" &&
    [ -e "$dot" ] && [ "$text" = "$(cat "$dot")" ]; then
    [ -n "$dry" ] || unstage
    say "same: $exe"
    return
  fi
  if [ -e "$exe" ]; then
    act "replace $exe ($text)" || return 0
  else
    act "write $exe ($text)" || return 0
  fi
  trap unstage EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  mkdir -p "$plugins"
  unstage_outside

  if [ ! -e "$dir" ] && can_rename; then
    # A first installation: the whole directory in one rename from outside.
    mkdir "$outside"
    stage "$outside/$name"
    sync "$outside"
    mv -fT "$outside" "$dir"
    sync "$plugins"
    return
  fi
  if [ ! -e "$dir" ]; then
    mkdir "$dir"
    made=yes
  fi
  stage "$new"
  trap '' HUP INT TERM # from here it is done or undone
  if [ -e "$dot" ] && [ "$text" = "$(cat "$dot")" ]; then
    mv -fT "$new" "$exe" || not_replaced
  else
    [ ! -e "$dot" ] || old=$(cat "$dot")
    mv -fT "$new_dot" "$dot"
    mv -fT "$new" "$exe" || { restore_dot && not_replaced; }
  fi
  made=''
  sync "$dir"
}

restore_dot() {
  if [ -n "$old" ]; then
    printf '%s\n' "$old" >"$new_dot"
    mv -fT "$new_dot" "$dot"
  else
    rm -f "$dot"
  fi
}

not_replaced() { die "$exe could not be replaced; the driver and its mode are unchanged" "see what holds it: findmnt $exe; lsattr $exe"; }

# can_rename: a directory beside the plugin directory can be renamed into it.
can_rename() {
  local above=${plugins%/*}
  [ -w "$above" ] && ! mountpoint -q "$plugins" && [ "$(stat -c %d "$above")" = "$(stat -c %d "$plugins")" ]
}

# place MODE FILE DEST: installs by rename. Sets changed unless DEST is the same already.
place() {
  if cmp -s "$2" "$3" && [ "$(stat -c %a "$3")" = "$1" ]; then
    say "same: $3"
    return
  fi
  changed=yes
  act "write $3" || return 0
  mkdir -p "${3%/*}"
  local new=${3%/*}/.${3##*/}.new
  install -m "$1" "$2" "$new"
  sync "$new"
  mv -fT "$new" "$3"
}

install_flexd() {
  local flexd=$root/usr/local/bin/flexd units=$root/usr/local/lib/systemd/system unit
  local config=$root/etc/flexd/flexd.yaml changed='' complaint kubelet_root

  if [ -e "$config" ]; then
    complaint=$("$bin/flexd" config --check "$config" 2>&1) ||
      die "the new flexd refuses the existing configuration; nothing was changed:
$complaint" "correct $config, and run this again"
  else
    "$bin/flexd" version >/dev/null || die "$bin/flexd does not run here" "it must be built for this architecture: make build"
  fi
  place 755 "$bin/flexd" "$flexd"
  # Beside the distribution's units: one in /etc/systemd/system is the administrator's and
  # takes precedence.
  for unit in flexd-driver.socket flexd-status.socket flexd.service; do
    place 644 "$here/examples/$unit" "$units/$unit"
    [ ! -e "$root/etc/systemd/system/$unit" ] ||
      say "note: /etc/systemd/system/$unit hides ${units#"$root"}/$unit; remove it if it is none of your own"
  done
  if [ -e "$config" ]; then
    say "keep: $config"
    [[ $(sed -n 's/^driver:[[:space:]]*//p' "$config") =~ ^[\"\']?${driver}[\"\']?([[:space:]]|$)|^$ ]] ||
      say "note: its driver is not $driver: flexd would refuse what kubelet asks"
  elif act "write $config: no volume group yet, so edit it"; then
    mkdir -p "${config%/*}"
    # The example's groups are comments: the administrator has not allowed a group of this node
    # yet.
    install -m 600 /dev/null "$config.new"
    sed '/^volumeGroups:/,$ s/^./# &/' "$here/examples/flexd.yaml" >"$config.new"
    [ "$driver" = flexd/lvm ] || printf '\ndriver: %s\n' "$driver" >>"$config.new"
    kubelet_root=$(flag root-dir)
    if [ -n "$kubelet_root" ] && ! plain "$kubelet_root"; then
      say "note: kubelet's --root-dir is not a plain absolute path; add it to kubeletRoots in $config: $(printf %q "$kubelet_root")"
    elif [ -n "$kubelet_root" ]; then
      printf '\nkubeletRoots: ["%s"]\n' "$kubelet_root" >>"$config.new"
    fi
    sync "$config.new"
    mv -T "$config.new" "$config"
  fi
  install_rule
  start_flexd
}

# install_rule installs the udev rule.
install_rule() {
  local rule=$root/etc/udev/rules.d/12-flexd.rules config=$config text
  [ -e "$config" ] || config=/dev/null # a dry run
  text=$("$bin/flexd" udev --config "$config" 2>&1) || {
    say "note: no udev rule: $text"
    return
  }
  if [ -e "$rule" ] && [ "$text" = "$(cat "$rule")" ]; then
    say "same: $rule"
  elif act "write $rule"; then
    mkdir -p "${rule%/*}"
    printf '%s\n' "$text" >"$rule.new"
    sync "$rule.new"
    mv -fT "$rule.new" "$rule"
    reload_udev
  fi
}

# start_flexd starts the installed unit. Calls of kubelet wait for flexd.
start_flexd() {
  if [ -z "$start" ] || ! has_systemd; then
    say "start: nothing; flexd runs as: systemctl enable --now flexd"
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

check_driver "$driver"
check_root
files=(flexdriver)
[ -n "$driver_only" ] || files+=(flexd)
for file in "${files[@]}"; do
  [ -x "$bin/$file" ] || die "$bin/$file is missing or not executable" "run \`make build\` first, or give --bin"
done
bin=$(cd "$bin" && pwd)

find_kubelet
[ -n "$plugin_dir" ] || find_plugin_dir
check_plugin_dir
check_dir "$(realpath -m "${plugins%/*}")"
dot=$dir/.$name.init.json
new=$dir/.$name.new
new_dot=$dir/..$name.new.init.json
outside=${plugins%/*}/.$vendor~$name.new
if [ -z "$dry" ]; then
  mkdir -p "${plugins%/*}" || die "${plugins%/*} cannot be made" "run this as root; where /usr is read-only, set kubelet's volumePluginDir to a directory that is not"
  lock
fi
choose_attach
report "driver" "$driver"
report "plugin directory" "$plugin_dir ($plugin_why)"
report "attach" "$attach ($attach_why)"
[ -z "$driver_only" ] || [ "$attach" = true ] ||
  say "note: the controller manager's machine needs the driver only for nodes with attach:true, and then --attach=true"

if [ -z "$driver_only" ]; then install_flexd; fi
install_driver
