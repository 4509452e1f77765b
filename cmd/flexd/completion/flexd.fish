# fish completion for flexd
function __flexd_complete
    set -l words (commandline -opc)
    $words[1] complete $words[2..] (commandline -ct) 2>/dev/null
end
function __flexd_has_candidates
    test -n "$(__flexd_complete)"
end
complete -c flexd -n __flexd_has_candidates -f -a '(__flexd_complete)'
