#compdef flexd
_flexd() {
  local -a candidates
  candidates=("${(@f)$(${words[1]} complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n ${candidates[1]} ]]; then
    compadd -- "${candidates[@]}"
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _flexd ]]; then _flexd "$@"; else compdef _flexd flexd; fi
