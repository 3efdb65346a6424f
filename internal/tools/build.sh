#!/bin/sh
# build.sh OUTPUT PACKAGE [DIRECTORY] builds a program of the module in DIRECTORY with the go command in $GO.
#
# The first build compiles some 350 packages: it says so at once, and how far it is. A build of a few packages is silent.
# Built, not `go run`: that would not pass a SIGTERM on, and what it had started would live on.
output=$1 package=$2 directory=${3:-.}
go=${GO:-go}

announce() {
	test -n "$total" && return
	total=$("$go" -C "$directory" list -deps "$package" 2>/dev/null | wc -l)
	echo "building $output from $((total)) packages: a minute or two the first time, seconds later"
}

# For go build -v a line without a space is a package that has been compiled.
{ "$go" -C "$directory" build -v -o "$PWD/$output" "$package" 2>&1; echo "go build: exit $?"; } | {
	compiled=0 total='' code=1
	while IFS= read -r line; do
		case $line in
		'go build: exit '*) code=${line##* } ;;
		'go: downloading '*) announce; echo "  $line" ;;
		*' '*) printf '%s\n' "$line" ;;
		*)
			compiled=$((compiled + 1))
			test $compiled -lt 10 || announce
			test $((compiled % 50)) -ne 0 || echo "  $compiled of $((total)) packages"
			;;
		esac
	done
	exit "$code"
} >&2
