//! Joining a platform, and upgrades of Ledge itself that it orders, on a box with systemd and without a network: the
//! repository is a folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::{VIEW, build, package};
use crate::CHECKOUT;
use crate::daemon::{setup_root, write};
use crate::machine::{Booted as _, Machine};
use crate::platform::Platform;
use crate::tools::{path_of, run};

/// The folders of the packages and of the repository in the machine.
const PACKAGES: &str = "/mnt/packages";
const REPOSITORY: &str = "/mnt/repository";

/// The state of root's service.
const STATE: &str = "/var/lib/ledge-upgrade/state.json";

/// An upgrade that has not ended by then never will.
const UPGRADE_LIMIT: Duration = Duration::from_mins(5);

/// The time from the begin of an upgrade in which the power is cut. On a slow machine dpkg needs the half of it.
const CUTS_WITHIN: Duration = Duration::from_secs(12);

/// What a version of the package does, besides its number.
enum Change {
    Nothing,
    /// The program ends at once.
    DoesNotStart,
    /// Its script fails.
    DoesNotInstall,
    /// Its program is this script, with the real one next to it as `ledge.real`.
    Program(&'static str),
}

/// Serves without the models of the owner.
const LOSES_MODELS: &str = "#!/bin/sh
if [ \"$1\" = serve ]; then exec /usr/bin/ledge.real \"$@\" --set repository.path=/run/ledge; fi
exec /usr/bin/ledge.real \"$@\"
";

/// Has a process that keeps 600 MB.
const EATS_MEMORY: &str = "#!/bin/sh
if [ \"$1\" = serve ]; then (head -c 600000000 /dev/zero | tail -c 600000000 | sleep 600) & fi
exec /usr/bin/ledge.real \"$@\"
";

/// Ends the service some seconds after it was ready.
const ENDS: &str = "#!/bin/sh
if [ \"$1\" = serve ]; then (sleep 8; kill -9 $$) & fi
exec /usr/bin/ledge.real \"$@\"
";

/// The package manager of a box.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    Deb,
    Rpm,
}

/// rpm of this machine in a Debian of the same release. Debian's rpm asks to be told that it is meant.
const BRINGS_RPM: &str = r#"
tar --extract --directory=/ --skip-old-files --file=/mnt/packages/rpm.tar
mv /usr/bin/rpm /usr/bin/rpm.real
printf '#!/bin/sh\nexec rpm.real --force-debian --dbpath /var/lib/rpm "$@"\n' > /usr/bin/rpm
chmod 755 /usr/bin/rpm
rpm --install /mnt/packages/names/*/RPMS/*/*.rpm"#;

/// A box and its platform.
struct Fleet {
    packages: TempDir,
    platform: Platform,
    machine: Machine,
    format: Format,
    /// The package as it was built.
    built: PathBuf,
    releases: u64,
}

impl Fleet {
    /// A box with version 0.9.1-1, which is release 1.
    fn new() -> Self {
        Self::boot(Format::Deb, Machine::bare)
    }

    fn boot(format: Format, boot: fn(&[(&Path, &str)]) -> Machine) -> Self {
        let packages = tempfile::tempdir().unwrap();
        let (kind, name) = if format == Format::Deb { ("deb", "ledge-slim_") } else { ("rpm", "ledge-slim-") };
        build(kind, &packages, &["slim"]);
        let built = package(&packages, name);
        let platform = Platform::new();
        let (runtimes, models) = (setup_root().join("runtimes").canonicalize().unwrap(), setup_root().join("models"));
        let machine = boot(&[
            (packages.path(), PACKAGES),
            (&platform.repository(), REPOSITORY),
            (&runtimes, "/usr/lib/ledge/runtimes"),
            (&models, "/mnt/models"),
        ]);
        let mut fleet = Self { packages, platform, machine, format, built, releases: 0 };
        let first = fleet.version("0.9.1-1", &Change::Nothing);
        fleet.sign(&first);
        let name = first.file_name().unwrap().to_str().unwrap().to_owned();
        match format {
            Format::Deb => fleet.machine.shell(&format!("cd {PACKAGES} && apt-get install --yes ./{name}")),
            Format::Rpm => {
                fleet.bring_rpm();
                fleet.machine.shell(&format!("rpm --install {PACKAGES}/{name}"));
                fleet.machine.shell("systemctl enable --now ledge ledge-upgrade.path ledge-upgrade")
            }
        };
        let config = format!(
            "[device]\nid = 'box-1'\n[updates]\nrepository = 'file://{REPOSITORY}'\n\
             root_file = '/var/lib/ledge-upgrade/root.json'\npoll_interval_s = 5\n[upgrades]\nenable = true\n"
        );
        fleet.machine.shell(&format!(
            "mkdir -p /var/lib/ledge-upgrade && cp {REPOSITORY}/root.json /var/lib/ledge-upgrade/ && \
             printf '%s' \"{config}\" >> /etc/ledge/ledge.toml && systemctl restart ledge && \
             systemctl start ledge-upgrade"
        ));
        fleet.machine.models(&["wine_mlp"]);
        fleet.machine.shell("chown -R ledge: /var/lib/ledge/models && systemctl reload ledge");
        fleet.machine.until("the model answers", |machine| {
            machine.ask(&["curl", "-sS", "-X", "POST", "127.0.0.1:8000/v2/repository/index"]).contains("READY")
        });
        fleet
    }

    /// Installs rpm in the machine, and names without files of what the package requires.
    fn bring_rpm(&self) {
        self.repack("repacked.stand_ins(Path(sys.argv[1]) / 'names')", &[]);
        let folder = self.packages.path();
        let libraries = run(Command::new("ldd").arg(path_of("rpm")));
        let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        let libraries = libraries.map(|path| path.trim_start_matches('/'));
        let mut tar = Command::new("tar");
        tar.args(["--create", "--dereference", "--directory=/", "--file"]).arg(folder.join("rpm.tar"));
        run(tar.args(["usr/bin/rpm", "usr/lib/rpm"]).args(libraries));
        self.machine.shell(BRINGS_RPM);
    }

    /// Runs a statement of Python with the module that makes packages of packages, the folder of the packages first among its
    /// arguments. Returns what it prints.
    fn repack(&self, statement: &str, arguments: &[&str]) -> String {
        let program = format!("import sys; from pathlib import Path; import repacked; {statement}");
        let mut command = self.platform.python();
        let modules = Path::new(CHECKOUT).join("packaging/platform/tests/installed");
        let tool = Path::new(CHECKOUT).join("packaging/platform");
        command.env("PYTHONPATH", std::env::join_paths([modules, tool]).unwrap());
        run(command.args(["-c", &program]).arg(self.packages.path()).args(arguments))
    }

    /// Another version of the package.
    fn version(&self, version: &str, change: &Change) -> PathBuf {
        match self.format {
            Format::Deb => self.version_of_deb(version, change),
            Format::Rpm => self.version_of_rpm(version, change),
        }
    }

    fn version_of_rpm(&self, version: &str, change: &Change) -> PathBuf {
        let change = match change {
            Change::Nothing => "",
            Change::DoesNotStart => ", program='#!/bin/sh\\nexit 1\\n'",
            Change::DoesNotInstall => ", post='exit 1'",
            Change::Program(_) => unreachable!("no test has such an rpm"),
        };
        let made = format!("print(repacked.higher_rpm(Path(sys.argv[2]), Path(sys.argv[1]), sys.argv[3]{change}))");
        let made = PathBuf::from(self.repack(&made, &[self.built.to_str().unwrap(), version]).trim());
        let placed = self.packages.path().join(made.file_name().unwrap());
        std::fs::copy(made, &placed).unwrap();
        placed
    }

    fn version_of_deb(&self, version: &str, change: &Change) -> PathBuf {
        let tree = self.packages.path().join("tree");
        let _ = std::fs::remove_dir_all(&tree);
        run(Command::new(path_of("dpkg-deb")).arg("--raw-extract").args([&self.built, &tree]));
        let control = tree.join("DEBIAN/control");
        let text = std::fs::read_to_string(&control).unwrap();
        let now = format!("Version: {}-1", env!("CARGO_PKG_VERSION"));
        write(&control, text.replacen(&now, &format!("Version: {version}"), 1).as_bytes());
        match change {
            Change::Nothing => {}
            Change::DoesNotStart => write(&tree.join("usr/bin/ledge"), b"#!/bin/sh\nexit 1\n"),
            Change::DoesNotInstall => write(&tree.join("DEBIAN/postinst"), b"#!/bin/sh\nexit 1\n"),
            Change::Program(script) => {
                let program = tree.join("usr/bin/ledge");
                std::fs::copy(&program, tree.join("usr/bin/ledge.real")).unwrap();
                write(&program, script.as_bytes());
            }
        }
        let made = self.packages.path().join(format!("ledge-slim_{version}_amd64.deb"));
        run(Command::new(path_of("dpkg-deb"))
            .args(["--root-owner-group", "-Zgzip", "-z1", "--build"])
            .args([&tree, &made]));
        made
    }

    /// Signs a package as the next release.
    fn sign(&mut self, package: &Path) -> u64 {
        self.releases += 1;
        self.platform.run(&["upgrade", "add"], &[&self.releases.to_string(), package.to_str().unwrap()]);
        self.releases
    }

    /// Rolls a release out to all boxes, and waits until the box has come to an end with it. Returns the state.
    fn roll_out(&mut self, release: u64) -> Value {
        let id = format!("r-{release}");
        let target = format!("packages/ledge-slim/{release}");
        self.platform
            .run(&["rollout", "start"], &["--id", &id, "--target", &target, "--waves", "all", "--soak", "min_s=15"]);
        self.end_of(release)
    }

    fn state(machine: &Machine) -> Option<Value> {
        serde_json::from_str(&machine.ask(&["cat", STATE])).ok()
    }

    /// Waits until the box has come to an end with a release. A version that is taken back takes minutes.
    #[track_caller]
    fn end_of(&mut self, release: u64) -> Value {
        let deadline = Instant::now() + UPGRADE_LIMIT;
        loop {
            let state = Self::state(&self.machine).unwrap_or_default();
            if state["phase"]["phase"] == "idle" && state["last"]["release"] == release {
                return state;
            }
            assert!(Instant::now() < deadline, "{state}\n{}", self.journal());
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn installed(&self) -> String {
        match self.format {
            Format::Deb => {
                self.machine.ask(&["dpkg-query", "--show", "--showformat=${Status} ${Version}", "ledge-slim"])
            }
            Format::Rpm => self.machine.ask(&[
                "rpm",
                "--query",
                "--queryformat",
                "install ok installed %{VERSION}-%{RELEASE}",
                "ledge-slim",
            ]),
        }
    }

    #[track_caller]
    fn assert_serves(&mut self, version: &str) {
        assert_eq!(self.installed(), format!("install ok installed {version}"));
        self.machine.until("the service is active", |machine| machine.property("ActiveState") == "active");
        self.machine.until("the box answers", |machine| {
            machine.ask(&["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "127.0.0.1:8000/v2/health/live"])
                == "200"
        });
        self.machine.shell("ledge audit verify");
    }

    /// Rolls out a package that is older than the installed version 0.9.2-1.
    #[track_caller]
    fn assert_refuses_an_older(&mut self, package: &Path) {
        self.releases += 1;
        let (release, unchecked) =
            (self.releases.to_string(), "upgrades.refuse_older = upgrades.refuse_without_way_back = lambda *_: None");
        let arguments = [&*release, package.to_str().unwrap()];
        self.platform.run_without(unchecked, &["upgrade", "add"], &arguments);
        let target = format!("packages/ledge-slim/{release}");
        let target = ["--id", "older", "--target", &target, "--waves", "all", "--allow-downgrade"];
        self.platform.run_without(unchecked, &["rollout", "start"], &target);
        self.machine.until("the older release is refused", |machine| {
            machine.try_shell("systemctl reset-failed ledge-upgrade; systemctl start ledge-upgrade");
            machine.ask(&["journalctl", "-u", "ledge-upgrade", "--no-pager", "-o", "cat"]).contains("is older than")
        });
        self.assert_serves("0.9.2-1");
    }

    fn journal(&self) -> String {
        self.machine.ask(&["journalctl", "-u", "ledge-upgrade", "--no-pager", "-o", "cat"])
    }
}

/// The steps of an upgrade with rpm. There is no distribution with rpm here: rpm runs on Debian with systemd.
#[test]
fn an_rpm_is_upgraded_taken_back_and_never_replaced_by_an_older_one() {
    let mut fleet = Fleet::boot(Format::Rpm, Machine::bare);
    fleet.assert_serves("0.9.1-1");
    let good = fleet.version("0.9.2-1", &Change::Nothing);
    let release = fleet.sign(&good);
    let before = fleet.machine.property("MainPID");
    let state = fleet.roll_out(release);
    assert_eq!(fault(&state), None, "{state}\n{}", fleet.journal());
    fleet.assert_serves("0.9.2-1");
    assert_ne!(fleet.machine.property("MainPID"), before, "the program from before the upgrade still runs");

    for (version, change, cause) in
        [("0.9.3-1", Change::DoesNotInstall, "install"), ("0.9.4-1", Change::DoesNotStart, "start")]
    {
        let bad = fleet.version(version, &change);
        let release = fleet.sign(&bad);
        let state = fleet.roll_out(release);
        assert_eq!(fault(&state), Some(cause), "{state}\n{}", fleet.journal());
        fleet.assert_serves("0.9.2-1");
        fleet.machine.shell("test ! -e /var/lib/ledge-upgrade/ledge && rpm --verify --noconfig ledge-slim");
    }

    let oldest = fleet.version("0.9.0-1", &Change::Nothing);
    fleet.assert_refuses_an_older(&oldest);
}

fn fault(state: &Value) -> Option<&str> {
    state["last"]["fault"][0].as_str()
}

#[test]
fn a_platform_upgrades_a_box_and_each_bad_version_is_taken_back() {
    let mut fleet = Fleet::new();
    fleet.machine.shell("ledge keys create till-7 --role infer > /root/till-7.key; cp /var/lib/ledge/keys.json /root/");

    let good = fleet.version("0.9.2-1", &Change::Nothing);
    let release = fleet.sign(&good);
    let state = fleet.roll_out(release);
    assert_eq!(fault(&state), None, "{state}\n{}", fleet.journal());
    fleet.assert_serves("0.9.2-1");
    fleet.machine.shell("cmp /var/lib/ledge/keys.json /root/keys.json");
    // The platform hears of it as of any other release.
    fleet.machine.until("it is reported", |machine| {
        let report: Value =
            serde_json::from_str(&machine.ask(&["ledge", "update", "status", "--json"])).unwrap_or_default();
        let subjects = report["subjects"].as_array().cloned().unwrap_or_default();
        subjects.iter().any(|subject| {
            subject["subject"] == "packages/ledge-slim"
                && subject["version"] == 2
                && subject["last"]["result"] == "committed"
        })
    });

    for (version, change, cause) in [
        ("0.9.3-1", Change::DoesNotInstall, "install"),
        ("0.9.4-1", Change::DoesNotStart, "start"),
        ("0.9.5-1", Change::Program(EATS_MEMORY), "memory"),
        ("0.9.6-1", Change::Program(ENDS), "start"),
        ("0.9.7-1", Change::Program(LOSES_MODELS), "models"),
    ] {
        let bad = fleet.version(version, &change);
        let release = fleet.sign(&bad);
        let state = fleet.roll_out(release);
        assert_eq!(fault(&state), Some(cause), "{state}\n{}", fleet.journal());
        fleet.assert_serves("0.9.2-1");
        fleet.machine.shell("cmp /var/lib/ledge/keys.json /root/keys.json; test ! -e /var/lib/ledge-upgrade/ledge");
    }
}

#[test]
fn no_order_but_that_of_the_signed_metadata_is_carried_out() {
    let mut fleet = Fleet::new();
    let good = fleet.version("0.9.2-1", &Change::Nothing);
    let release = fleet.sign(&good);
    fleet.roll_out(release);
    fleet.assert_serves("0.9.2-1");

    // A fleet key can name an older release; root's service refuses it.
    let oldest = fleet.version("0.9.0-1", &Change::Nothing);
    fleet.assert_refuses_an_older(&oldest);

    // The daemon's user changes the package, and then the metadata.
    let next = fleet.version("0.9.3-1", &Change::DoesNotStart);
    let release = fleet.sign(&next);
    fleet.machine.shell("systemctl stop ledge-upgrade.path");
    let target = format!("packages/ledge-slim/{release}");
    fleet.platform.run(&["rollout", "start"], &["--id", "next", "--target", &target, "--waves", "all"]);
    let folder = "/var/lib/ledge/updates/upgrade";
    let of_release = format!("{folder}/targets/packages/ledge-slim/{release}");
    fleet.machine.until("the package is copied", |machine| {
        machine.try_shell(&format!("grep -q next {folder}/order")).status.success()
    });
    fleet.machine.shell(&format!("systemctl stop ledge; f=$(ls {of_release}/*.deb); cp --remove-destination {PACKAGES}/ledge-slim_0.9.1-1_amd64.deb $f; chown ledge $f"));
    fleet.machine.shell("systemctl start ledge");
    fleet.machine.until("the service is active", |machine| machine.property("ActiveState") == "active");
    let refused = fleet.machine.try_shell("ledge upgrade 2>&1");
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(said.contains("another length") || said.contains("not the package that was signed"), "{said}");
    fleet.machine.shell(&format!("sed -i 's/\"version\": 1/\"version\": 9/' {folder}/metadata/*.packages.json"));
    let refused = fleet.machine.try_shell("ledge upgrade 2>&1");
    assert!(!refused.status.success(), "{}", String::from_utf8_lossy(&refused.stdout));
    fleet.assert_serves("0.9.2-1");
}

/// `kill -9` of root's service and of the package manager, which systemd counts as one, at places of an upgrade; then both
/// start again, as after a power cut.
#[test]
fn an_upgrade_that_is_killed_anywhere_ends_with_one_whole_version() {
    let places: u32 = std::env::var("UPGRADE_KILLS").map_or(6, |count| count.parse().unwrap());
    let mut fleet = Fleet::new();
    let mut minor = 1;
    for place in 0..places {
        minor += 1;
        let version = format!("0.9.{minor}-1");
        let next = fleet.version(&version, &Change::Nothing);
        let release = fleet.sign(&next);
        let before = fleet.installed();
        let target = format!("packages/ledge-slim/{release}");
        let id = format!("k-{release}");
        fleet
            .platform
            .run(&["rollout", "start"], &["--id", &id, "--target", &target, "--waves", "all", "--soak", "min_s=1"]);
        fleet.machine.until("the upgrade begins", |machine| {
            Fleet::state(machine)
                .is_some_and(|state| state["phase"]["phase"] != "idle" || state["last"]["release"] == release)
        });
        std::thread::sleep(Duration::from_millis(u64::from(place) * 3000 / u64::from(places)));
        fleet.machine.shell("systemctl kill --signal=KILL ledge-upgrade; systemctl kill --signal=KILL ledge; true");
        fleet.machine.shell("systemctl reset-failed; systemctl start --no-block ledge ledge-upgrade");
        let state = fleet.end_of(release);
        assert_eq!(fault(&state), None, "{place}: from {before}: {state}\n{}", fleet.journal());
        fleet.assert_serves(&version);
        fleet.machine.shell("test -z \"$(dpkg --audit)\"");
    }
}

/// The power fails at places of an upgrade: what was not written to the disk is lost, and the machine boots from the rest.
#[test]
fn after_a_power_cut_anywhere_in_an_upgrade_one_whole_version_runs_with_all_that_the_box_had() {
    let places: u32 = std::env::var("UPGRADE_CUTS").map_or(4, |count| count.parse().unwrap());
    let mut fleet = Fleet::boot(Format::Deb, Machine::with_disk);
    fleet.machine.shell(&format!(
        "cat > /etc/ledge/feature_views.d/shop.toml <<'TOML'\n{VIEW}\nTOML\nsystemctl reload ledge; \
         ledge keys create till-7 --role infer > /root/till-7.key; cp /var/lib/ledge/keys.json /root/"
    ));
    let push = r#"{"push_source_name":"vibration","df":{"machine_id":["press-7"],"rms":[3.5]}}"#;
    fleet.machine.until("the feature is stored", |machine| {
        machine.try_shell(&format!("curl -sSf 127.0.0.1:8000/push -d '{push}'")).status.success()
    });
    fleet.machine.shell("sync");
    let ask = r#"{"features":["vibration:rms"],"entities":{"machine_id":["press-7"]}}"#;
    let mut cuts = std::collections::BTreeMap::<_, u32>::new();
    for place in 0..places {
        let (before, version) = (fleet.installed(), format!("0.9.{}-1", place + 2));
        let next = fleet.version(&version, &Change::Nothing);
        let release = fleet.sign(&next);
        let (id, target) = (format!("c-{release}"), format!("packages/ledge-slim/{release}"));
        fleet
            .platform
            .run(&["rollout", "start"], &["--id", &id, "--target", &target, "--waves", "all", "--soak", "min_s=1"]);
        let begins_before = Instant::now() + UPGRADE_LIMIT;
        while Fleet::state(&fleet.machine)
            .is_none_or(|state| state["phase"]["phase"] == "idle" && state["last"]["release"] != release)
        {
            let status = fleet.machine.ask(&["ledge", "update", "status", "--json"]);
            assert!(Instant::now() < begins_before, "{place}: it does not begin: {status}\n{}", fleet.journal());
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(CUTS_WITHIN * place / places);
        let cut = Fleet::state(&fleet.machine).map_or_else(String::new, |state| state["phase"]["phase"].to_string());
        let at_dpkg = fleet.machine.ask(&["dpkg-query", "--show", "--showformat=${db:Status-Status}", "ledge-slim"]);
        fleet.machine.cut_power();
        let state = fleet.end_of(release);
        let expected = if fault(&state).is_some() { before.rsplit(' ').next().unwrap().to_owned() } else { version };
        fleet.assert_serves(&expected);
        let end = if fault(&state).is_some() { "taken back" } else { "finished" };
        *cuts.entry(format!("{cut} with the package {at_dpkg}: {end}")).or_default() += 1;
        fleet.machine.shell("test -z \"$(dpkg --audit)\" && cmp /var/lib/ledge/keys.json /root/keys.json");
        let features = fleet.machine.shell(&format!("curl -sSf 127.0.0.1:8000/get-online-features -d '{ask}'"));
        assert!(features.contains("[3.5]") && features.contains("PRESENT"), "{place}: {features}");
        fleet.machine.until("the model answers", |machine| {
            machine.ask(&["curl", "-sS", "-X", "POST", "127.0.0.1:8000/v2/repository/index"]).contains("READY")
        });
    }
    println!("power cuts: {cuts:?}");
}

#[test]
fn an_installed_box_joins_with_one_command_and_its_keys_are_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    build("deb", &folder, &["slim"]);
    let built = package(&folder, "ledge-slim_");
    let platform = Platform::new();
    let site = folder.path().join("site");
    let tool =
        |words: &[&str]| run(platform.python().args(["-m", "ledge_platform"]).args(words).arg("--root").arg(&site));
    // Nobody answers there.
    let made = tool(&["init", "example", "--domain", "192.0.2.7", "--plain"]);
    let fingerprint = made.lines().find_map(|line| line.strip_prefix("fingerprint of the root certificate: ")).unwrap();
    tool(&["box", "add", "shop-7", "--packages", "--out", folder.path().to_str().unwrap()]);
    let mut machine = Machine::bare(&[(folder.path(), PACKAGES)]);
    let name = built.file_name().unwrap().to_str().unwrap();
    machine.shell(&format!("cd {PACKAGES} && apt-get install --yes ./{name}"));

    let refused = machine.try_shell(&format!("ledge join {PACKAGES}/shop-7.join </dev/null 2>&1"));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("pass it with --fingerprint"));
    machine.shell("test ! -e /var/lib/ledge/membership && test ! -e /etc/systemd/system/ledge.service.d");

    // As an image does it: a stick, and the platform that the image names.
    machine.shell(&format!(
        "mkdir -p /media/ledge && cp {PACKAGES}/shop-7.join /media/ledge && cp /etc/ledge/ledge.toml /tmp"
    ));
    let set = |fingerprint: &str| {
        format!(
            "cp /tmp/ledge.toml /etc/ledge && printf '[membership]\nfingerprint = \"{fingerprint}\"\n' >> /etc/ledge/ledge.toml"
        )
    };
    machine.shell(&set(&"5a".repeat(32)));
    assert!(!machine.try_shell("systemctl start ledge-join").status.success());
    let said = machine.shell("journalctl -u ledge-join -o cat");
    assert!(said.contains("another one, so it is of another platform"), "{said}");
    machine.shell("test ! -e /var/lib/ledge/membership && test ! -e /etc/systemd/system/ledge.service.d");
    machine.shell(&set(fingerprint));
    machine.shell("systemctl start ledge-join");
    let said = machine.shell("journalctl -u ledge-join -o cat");
    assert!(said.contains("the service was started again"), "{said}");
    machine.until("the service is active", |machine| machine.property("ActiveState") == "active");
    machine.until("the request is on the disk", |machine| {
        machine.try_shell("test -e /var/lib/ledge/membership/request.json").status.success()
    });
    // Owned by the service, readable for nobody else, and the private key is not there in plain.
    let listed = machine.shell("stat -c '%a %U %n' /var/lib/ledge/membership /var/lib/ledge/membership/*");
    assert!(listed.lines().all(|line| line.starts_with("600 ledge ") || line.starts_with("700 ledge ")), "{listed}");
    let plain = machine.ask(&["grep", "-rl", "PRIVATE KEY", "/var/lib/ledge/membership"]);
    let has_credential = said.contains("could not encrypt");
    assert_eq!(plain.is_empty(), !has_credential, "{plain}\n{said}");
    let drop_in = machine.shell("cat /etc/systemd/system/ledge.service.d/membership.conf");
    assert!(drop_in.contains("IPAddressAllow=192.0.2.7"), "{drop_in}");
    machine.shell("test -s /var/lib/ledge-upgrade/root.json");
    assert_eq!(machine.shell("stat -c %U /var/lib/ledge-upgrade/root.json").trim(), "root");
    let doctor = machine.ask(&["ledge", "doctor"]);
    assert!(doctor.contains("shop-7 is not a member of example yet"), "{doctor}");

    // A box that is a member takes no other.
    let before = machine.shell("md5sum /var/lib/ledge/membership/*");
    machine.shell("systemctl start ledge-join");
    assert_eq!(machine.shell("md5sum /var/lib/ledge/membership/*"), before);
    let again = machine.try_shell("ledge join --wait 0 /media/ledge 2>&1");
    assert!(String::from_utf8_lossy(&again.stdout).contains("a member of example as shop-7 already"));
    machine.shell("systemctl restart ledge");
    machine.until("the service is active", |machine| machine.property("ActiveState") == "active");
    assert_moves_to_new_hardware(&mut machine, name, has_credential);
}

/// The commands of docs/new-hardware.md, on a box that forgets everything in between.
fn assert_moves_to_new_hardware(machine: &mut Machine, package: &str, has_credential: bool) {
    machine
        .shell(&format!("cat > /etc/ledge/feature_views.d/shop.toml <<'TOML'\n{VIEW}\nTOML\nsystemctl restart ledge"));
    let push = r#"{"push_source_name":"vibration","df":{"machine_id":["press-7"],"rms":[3.5]}}"#;
    machine.until("a push is taken", |machine| {
        machine.try_shell(&format!("curl -sSf 127.0.0.1:8000/push -d '{push}'")).status.success()
    });
    machine
        .shell("ledge keys create till-7 --role infer > /root/till-7.key; echo a long passphrase > /root/passphrase");
    let keys = "--keys /root/keys.age --passphrase-file /root/passphrase";
    let said = machine.shell(&format!("ledge backup /root/box.ledge {keys}"));
    assert!(said.contains("the private keys, encrypted"), "{said}");
    let kept = "cat /var/lib/ledge/device-id /var/lib/ledge/keys.json /etc/ledge/ledge.toml 2>&1 || true";
    let before = machine.shell(kept);

    machine
        .shell("apt-get purge --yes ledge-slim && rm -rf /etc/systemd/system/ledge.service.d /etc/credstore.encrypted");
    machine.shell(&format!("cd {PACKAGES} && apt-get install --yes ./{package} && systemctl stop ledge"));
    assert_ne!(machine.shell(kept), before);
    let said = machine.shell(&format!("ledge restore /root/box.ledge {keys} --replace && systemctl start ledge"));
    assert!(said.contains("the old hardware"), "{said}");
    assert_eq!(machine.shell(kept), before);
    machine.until("the service is active", |machine| machine.property("ActiveState") == "active");
    let ask = r#"{"features":["vibration:rms"],"entities":{"machine_id":["press-7"]}}"#;
    machine.until("the features are there", |machine| {
        let features = machine.ask(&["curl", "-sS", "127.0.0.1:8000/get-online-features", "-d", ask]);
        features.contains("[3.5]") && features.contains("PRESENT")
    });
    machine.shell("ledge audit verify");
    let listed = machine.shell("find /var/lib/ledge /etc/ledge/ledge.toml -printf '%u %m %p\\n'");
    assert!(!listed.lines().any(|line| line.starts_with("root ") && line.contains("/var/lib/ledge/")), "{listed}");
    let plain = machine.ask(&["grep", "-rl", "PRIVATE KEY", "/var/lib/ledge/membership"]);
    assert_eq!(plain.is_empty(), !has_credential, "{plain}\n{said}");
    let drop_in = machine.shell("cat /etc/systemd/system/ledge.service.d/membership.conf");
    assert!(drop_in.contains("IPAddressAllow=192.0.2.7"), "{drop_in}");
    machine.shell("test -s /var/lib/ledge-upgrade/root.json");
    let doctor = machine.ask(&["ledge", "doctor"]);
    assert!(doctor.contains("shop-7 is not a member of example yet"), "{doctor}");
}
