# What .ci/run and .ci/nightly share. Each part is a make target; names on the command line select parts.

# What this machine has, or make installs on it, must not be missing where a test needs it. A workflow names more.
has() { command -v "$1" >/dev/null; }
require=()
if [ -n "${SAGAMILL_REQUIRE:-}" ]; then
	require+=("$SAGAMILL_REQUIRE")
fi
if [ "$(id -u)" -eq 0 ] && has apt-get; then
	require+=(pgbouncer chromium)
fi
if has node && has npm; then
	require+=(node)
fi
if has rabbitmq-server; then
	require+=(rabbitmq)
fi
if has redis-server; then
	require+=(redis)
fi
if has nats-server; then
	require+=(nats)
fi
SAGAMILL_REQUIRE=$(IFS=,; echo "${require[*]}")
export SAGAMILL_REQUIRE

asked=" $* " # names of parts; nothing means all
times=()     # a line for each part that ran
failed=()    # the parts that failed

# part runs a command as a part that has the name of its make target, and notes how long it took. Any word of the name
# selects it. If the part fails, the script ends, unless go_on is set.
part() {
	local name=${*:2} begin=$SECONDS result= word wanted=
	for word in '' "${@:2}"; do
		[[ $asked != *" $word "* ]] || wanted=yes
	done
	if [ -z "$wanted" ]; then
		return
	fi
	"$@" || result=', failed'
	times+=("$(printf '%4d:%02d  %s%s' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) "$name" "$result")")
	if [ -n "$result" ]; then
		failed+=("$name")
	fi
	[ -z "$result" ] || [ -n "${go_on:-}" ]
}

# report prints the time of each part, also if one has failed, and the sum.
report() {
	local code=$?
	if [ ${#times[@]} -eq 0 ]; then
		echo "${0##*/}: no part is called$asked" >&2
		exit 2
	fi
	printf '\n%s: minutes of each part\n' "${0##*/}"
	printf '%s\n' "${times[@]}"
	printf '%4d:%02d  together\n' $((SECONDS / 60)) $((SECONDS % 60))
	exit $((code > 0 ? code : ${#failed[@]} > 0))
}
trap report EXIT
