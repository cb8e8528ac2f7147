#!/usr/bin/env bash
# Starts Ledge on the models in .ledge/, asks it what is on a photograph, and serves until Ctrl-C. `make run` calls it.
set -u
cd "$(dirname "$0")/.."

address=127.0.0.1:8000
photograph=tests/data/photos/coffee.png
infer=http://$address/v2/models/efficientnet_lite0/infer
log=.ledge/serve.log
patience=120 # seconds; the first start compiles the models for this processor

fail() {
    echo "$1" >&2
    if [ "${daemon-}" ]; then
        echo "The end of $log:" >&2
        tail -n 30 "$log" | sed 's/^/    /' >&2
    fi
    exit 1
}

listening() { (exec 3<>"/dev/tcp/${address/://}") 2>/dev/null; }

[ -d .ledge ] || fail "There is no .ledge/ yet: make setup"
[ -x target/release/ledge ] || fail "target/release/ledge is not there yet: make build"
if listening; then
    fail "Port 8000 of this machine is taken by another program, perhaps by another Ledge. Stop it, then try again.
(\`ss -ltnp 'sport = :8000'\` names it.)"
fi

# The daemon runs in this script's own process group: an interrupt reaches it even where the shell was started with it ignored.
# The daemon treats a second signal as the first.
target/release/ledge serve --root .ledge </dev/null >"$log" 2>&1 &
daemon=$!
trap 'kill -TERM "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null' EXIT
trap 'echo; echo "Stopping."; exit 0' INT TERM HUP

until curl --noproxy '*' --silent --fail --max-time 2 --output /dev/null "${infer%/infer}/ready"; do
    kill -0 "$daemon" 2>/dev/null || fail "Ledge ended before it was ready."
    [ "$SECONDS" -lt "$patience" ] || fail "Ledge was not ready within $patience seconds."
    sleep 0.1
done

# curl prints the status and the time as a last line after the answer.
answer=$(curl --noproxy '*' --silent --show-error --max-time 60 --header 'Content-Type: image/png' --data-binary "@$photograph" \
    --write-out '\n%{http_code} %{time_total}' "$infer") || fail "Ledge did not answer."
echo
echo "$photograph shows:"
"${PYTHON:-python3}" models/show_answer.py <<<"$answer"
cat <<END

Ledge is serving on http://$address. From another terminal:

    curl --header 'Content-Type: image/png' --data-binary '@$PWD/$photograph' $infer

Its log is $log. Ctrl-C stops it.
END

if wait "$daemon"; then
    echo "Stopped."
    exit 0
fi
fail "Ledge ended by itself."
