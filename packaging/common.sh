# Part of the scripts of both packages: packaging/build replaces "#COMMON#" by this file.

# Refuses to install this package over a store of a later version, which its program could not read. The daemon's user writes the
# file, so only plain names and numbers are read from it.
refuse_later_stores() {
	known=' #FORMATS# '
	[ -f /var/lib/ledge/formats ] && [ ! -L /var/lib/ledge/formats ] || return 0
	while read -r store format _; do
		case $store in '' | *[!a-z_]*) continue ;; esac
		case $format in '' | *[!0-9]* | ??????????*) continue ;; esac
		limit=${known#* "$store"=}
		if [ "$limit" = "$known" ]; then limit=0; else limit=${limit%% *}; fi
		[ "$format" -gt "$limit" ] || continue
		echo "ledge: a later version has run on this machine: its store '$store' is of form $format, and version #VERSION#" >&2
		echo "knows form $limit at most, so it could not read what is there. Nothing was changed." >&2
		echo "Install the later version again; or move /var/lib/ledge away and start with nothing." >&2
		exit 1
	done </var/lib/ledge/formats
}

# Makes the user and the folders, with systemd's tools or, in a root without them, in the same way by hand.
make_user_and_folders() {
	if command -v systemd-sysusers >/dev/null; then
		systemd-sysusers ledge.conf
	elif ! getent passwd ledge >/dev/null; then
		useradd --system --user-group --no-create-home --home-dir /var/lib/ledge --shell /usr/sbin/nologin \
			--comment 'Ledge inference appliance' ledge
	fi
	if command -v systemd-tmpfiles >/dev/null; then
		systemd-tmpfiles --create ledge.conf
	else
		install -d -o ledge -g ledge -m 0700 /var/lib/ledge /var/lib/ledge/models
		install -d -m 0755 /etc/ledge/feature_views.d
	fi
}
