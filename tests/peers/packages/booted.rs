//! The package on a box with systemd: installed, upgraded while callers use it, and purged; and the commands of
//! README.md for it.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Output};

use super::{VIEW, build, earlier, package};
use crate::daemon::data;
use crate::machine::{Booted as _, Machine};
use crate::page::{Line, commands};

/// The folder of the packages in the machine.
const PACKAGES: &str = "/mnt/packages";

/// Asks for the objects on the photograph.
const CLASSIFY: &str = "curl -sS --max-time 60 -X POST -H 'Content-Type: image/png' \
                        127.0.0.1:8000/v2/models/efficientnet_lite0/infer -T";
const PHOTOGRAPH: &str = "/usr/share/ledge/models/efficientnet_lite0/golden/coffee.png";

#[track_caller]
fn said(output: &Output) -> String {
    let text = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[track_caller]
fn install(machine: &Machine, package: &Path) {
    let name = package.file_name().unwrap().to_str().unwrap();
    let done = machine.try_shell(&format!("cd {PACKAGES} && apt-get install --yes --allow-downgrades ./{name}"));
    assert!(done.status.success(), "{}", said(&done));
}

fn pid(machine: &Machine) -> String {
    let pid = machine.property("MainPID");
    assert_ne!(pid, "0", "the service does not run");
    pid
}

/// A request of which the second half is not sent yet.
fn half_a_request(machine: &mut Machine, photograph: &[u8]) -> Child {
    let mut request = machine.begin(&format!("{CLASSIFY} -"));
    request.stdin.as_mut().unwrap().write_all(&photograph[..photograph.len() / 2]).unwrap();
    // Established, from port 8000.
    machine.until("the request has begun", |machine| {
        let connections = machine.ask(&["cat", "/proc/net/tcp"]);
        let mut connections = connections.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        connections.any(|words| words[1].ends_with(":1F40") && words[3] == "01")
    });
    request
}

#[test]
fn an_upgrade_loses_no_request_and_nothing_that_the_box_remembers_and_a_purge_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    build("deb", &folder, &["full"]);
    let new = package(&folder, "ledge_");
    let old = earlier(&new, &folder, "0.0.9-1");
    let mut machine = Machine::bare(&[(folder.path(), PACKAGES)]);
    // State on a separate disk.
    machine.shell("mkdir /var/lib/ledge && mount -t tmpfs tmpfs /var/lib/ledge");
    install(&machine, &old);
    assert_eq!(machine.property("ActiveState"), "active");
    // A box that has served nothing before is ready with the first of its models.
    machine.until("the photograph is recognised", |machine| {
        machine.shell(&format!("{CLASSIFY} {PHOTOGRAPH}")).contains("\"espresso\"")
    });
    machine
        .shell(&format!("cat > /etc/ledge/feature_views.d/shop.toml <<'TOML'\n{VIEW}\nTOML\nsystemctl reload ledge"));
    machine.shell("printf '[shutdown]\\ngrace_ms = 20000\\n' >> /etc/ledge/ledge.toml; systemctl restart ledge");
    machine.shell("ledge keys create till-7 --role infer > /root/till-7.key");
    let push = r#"{"push_source_name":"vibration","df":{"machine_id":["press-7"],"rms":[3.5]}}"#;
    machine.shell(&format!("curl -sSf 127.0.0.1:8000/push -d '{push}'"));

    let kept = "cd /var/lib/ledge; stat -c '%a %U' . models; cat device-id keys.json; cat /etc/ledge/ledge.toml";
    let (before, first) = (machine.shell(kept), pid(&machine));
    assert!(before.starts_with("700 ledge\n700 ledge\n"), "{before}");
    let photograph = data("photos/coffee.png");
    let mut request = half_a_request(&mut machine, &photograph);
    let name = new.file_name().unwrap().to_str().unwrap().to_owned();
    let upgrade = machine.begin(&format!("cd {PACKAGES} && apt-get install --yes ./{name} </dev/null"));
    machine.until("the old version ends", |machine| machine.property("ActiveState") == "deactivating");
    request.stdin.take().unwrap().write_all(&photograph[photograph.len() / 2..]).unwrap();
    let answered = request.wait_with_output().unwrap();
    assert!(answered.status.success() && said(&answered).contains("\"espresso\""), "{}", said(&answered));
    let upgraded = upgrade.wait_with_output().unwrap();
    assert!(upgraded.status.success(), "{}", said(&upgraded));
    let second = pid(&machine);
    assert_ne!(second, first, "the old program still runs");
    assert_eq!(machine.shell(kept), before);
    let ask = r#"{"features":["vibration:rms"],"entities":{"machine_id":["press-7"]}}"#;
    let features = machine.shell(&format!("curl -sSf 127.0.0.1:8000/get-online-features -d '{ask}'"));
    assert!(features.contains("[3.5]") && features.contains("PRESENT"), "{features}");
    machine.shell("ledge audit verify");

    // A refused downgrade leaves the running version.
    machine.shell("sed -i 's/^features .*/features 99/' /var/lib/ledge/formats");
    let refused = machine.try_shell(&format!(
        "cd {PACKAGES} && apt-get install --yes --allow-downgrades ./{}",
        old.file_name().unwrap().to_str().unwrap()
    ));
    assert!(!refused.status.success() && said(&refused).contains("is of form 99"), "{}", said(&refused));
    assert_eq!(pid(&machine), second);

    let purged = machine.try_shell("apt-get purge --yes ledge");
    assert!(purged.status.success(), "{}", said(&purged));
    assert_eq!(
        (machine.property("ActiveState"), machine.property("LoadState")),
        ("inactive".into(), "not-found".into())
    );
    let left =
        machine.shell("ls -A /var/lib/ledge; ls -d /etc/ledge /run/ledge /usr/lib/ledge /usr/bin/ledge 2>&1 || true");
    assert_eq!(left.matches("No such file").count(), 4, "{left}");
    assert_eq!(left.lines().count(), 4, "{left}");
    assert_eq!(machine.shell("getent passwd ledge || true"), "");
    assert_eq!(machine.shell("grep -lx ledge /proc/[0-9]*/comm || true"), "");
}

#[test]
fn five_minutes_do_what_the_readme_says() {
    const BOX: &str = "192.168.1.7";
    let folder = tempfile::tempdir().unwrap();
    build("deb", &folder, &["full"]);
    let mut machine = Machine::bare(&[(folder.path(), PACKAGES)]);
    machine.address(&format!("{BOX}/24"));
    machine.shell("install -d -o nobody /tmp/client");
    let call = |machine: &Machine, line: &Line| {
        let text = line.text.replace("https://BOX:", &format!("https://{BOX}:"));
        if line.is_roots {
            let text = text.replace("apt install", "apt-get install --yes");
            let done = machine.try_shell(&format!("cd {PACKAGES}\n{text}"));
            // Its exit code shows that everything is encrypted, which takes a moment.
            assert!(done.status.success() || text.ends_with("ledge encryption status"), "{text}: {}", said(&done));
            return said(&done);
        }
        machine.run(&["su", "nobody", "-s", "/bin/sh", "-c", &format!("set -e; cd /tmp/client\n{text}")])
    };
    let fences = commands(include_str!("../../../README.md"), "\n## Five minutes\n");
    let [install, open, ask, seal] = &fences[..] else { panic!("there are other fences: {fences:?}") };
    let all =
        |machine: &Machine, fence: &[Line]| fence.iter().map(|line| call(machine, line)).collect::<Vec<_>>().concat();

    assert!(all(&machine, install).contains("\"espresso\""));
    all(&machine, open);
    // As the README has it copied.
    machine.shell(&format!(
        "cp /root/till-7.key /var/lib/ledge/tls/self-signed.pem /tmp/client && \
         cp {PHOTOGRAPH} /tmp/client/ && chown -R nobody /tmp/client"
    ));
    assert!(all(&machine, ask).contains("\"espresso\""));
    let stranger = ask.last().unwrap();
    let text = stranger.text.replace("-H @till-7.header", "-o /dev/null -w '%{http_code}'");
    assert_ne!(text, stranger.text);
    assert_eq!(call(&machine, &Line { is_roots: false, text }), "401");
    all(&machine, seal);
    machine.until("all is encrypted", |machine| {
        let status = machine.ask(&["ledge", "encryption", "status"]);
        status.contains("encrypted with") && !status.contains("plain")
    });
    assert!(all(&machine, &ask[1..]).contains("\"espresso\""), "the encrypted data does not serve");
}
