//! `ledge.service` under a real systemd, which a container boots.

use std::path::Path;
use std::process::{Child, Command};

use serde_json::Value;

use crate::daemon::model_folder;
use crate::machine::{Booted as _, Machine, UNITS};
use crate::platform::Platform;
use crate::tools::{path_of, run};

/// The highest exposure that `systemd-analyze security` may report: 0.0 is nothing exposed, 10.0 everything.
const MOST_EXPOSED: f64 = 1.5;

/// The answers to one request of six rows.
const ASK: &str = "ledge infer wine_mlp /mnt/models/wine_mlp/golden/rows.json --url unix:/run/ledge/ledge.sock";

#[test]
fn the_unit_exposes_no_more_than_it_may() {
    let unit = Path::new(UNITS).join("ledge.service");
    let mut command = Command::new(path_of("systemd-analyze"));
    let told = run(command.args(["security", "--no-pager", "--offline=yes"]).arg(unit));
    let exposure = told.lines().last().and_then(|line| line.split("ledge.service: ").nth(1)).unwrap();
    let exposure: f64 = exposure.split(' ').next().unwrap().parse().unwrap();
    assert!(exposure <= MOST_EXPOSED, "{told}");
}

#[test]
fn the_first_start_without_a_configuration_serves_and_takes_up_changes_until_it_is_stopped() {
    let mut machine = Machine::boot(&[]);
    let verified = machine.run(&["sh", "-c", "systemd-analyze verify --man=no ledge.service 2>&1"]);
    assert_eq!(verified, "");
    machine.models(&["wine_mlp"]);
    // In both runtimes, one of which makes code at run time.
    machine.shell(
        "cd /var/lib/ledge/models && cp -r wine_mlp wine_openvino && \
         sed -i 's/^runtime = .*/runtime = \"openvino\"/' wine_openvino/model.toml",
    );
    machine.drop_in("[Service]\nEnvironment=LEDGE_LOG_LEVEL=info,ledge::protocol=debug\n");
    machine.run(&["systemctl", "start", "ledge"]);
    // `start` ends with READY=1, and models were loaded before.
    assert_eq!(machine.property("ActiveState"), "active");
    machine.until("its status", |machine| machine.property("StatusText") == "2 models ready");
    assert!(machine.shell("ls /run/ledge /var/lib/ledge").contains("ledge.sock"));
    let seccomp = machine.shell("grep Seccomp: /proc/$(systemctl show ledge --value -p MainPID)/status");
    assert_eq!(seccomp.split_whitespace().last(), Some("2"), "{seccomp}");

    let answer = machine.shell(ASK);
    assert!(answer.contains("probabilities [6,3]"), "{answer}");
    let answer = machine.shell(&ASK.replace("infer wine_mlp", "infer wine_openvino"));
    assert!(answer.contains("probabilities [6,3]"), "{answer}");
    let entries = machine.shell("journalctl -u ledge -o json MODEL=wine_openvino PRINCIPAL=uid:0 STATUS=200");
    let entry: Value = serde_json::from_str(entries.lines().next().unwrap()).unwrap();
    assert!(entry["MESSAGE"].as_str().unwrap().starts_with("answered model=wine_openvino"), "{entry}");

    machine.shell("cd /var/lib/ledge/models && cp -r wine_mlp wine_more && chown -R ledge: .");
    machine.run(&["systemctl", "reload", "ledge"]);
    machine.until("the new model", |machine| machine.property("StatusText") == "3 models ready");
    let reloads = machine.ask(&["journalctl", "-u", "ledge", "-o", "cat", "--no-pager"]);
    assert!(reloads.contains("Reloaded ledge.service"), "{reloads}");

    let audited = machine.shell("ledge audit verify");
    machine.run(&["systemctl", "stop", "ledge"]);
    assert_eq!(
        (machine.property("Result"), machine.property("ActiveState")),
        ("success".into(), "inactive".into()),
        "{audited}"
    );
}

#[test]
fn a_process_that_hangs_and_one_that_dies_are_replaced_and_a_wrong_configuration_is_not_tried_again() {
    let mut machine = Machine::boot(&[]);
    machine.models(&["wine_mlp"]);
    machine.drop_in("[Service]\nWatchdogSec=4\n");
    machine.run(&["systemctl", "start", "ledge"]);
    // It is alive for longer than the watchdog waits.
    let started = std::time::Instant::now();
    machine.until("two watchdogs' time", |_| started.elapsed().as_secs() > 8);
    assert_eq!(machine.property("NRestarts"), "0");

    machine.shell("kill -STOP $(systemctl show ledge --value -p MainPID)");
    machine.until("a new process for one that hangs", |machine| machine.property("NRestarts") != "0");
    let journal = machine.ask(&["journalctl", "-u", "ledge", "-o", "cat", "--no-pager"]);
    assert!(journal.contains("Watchdog timeout (limit 4s)!"), "{journal}");
    machine.until("it serves", |machine| machine.property("StatusText") == "1 model ready");

    let restarts = machine.property("NRestarts");
    machine.shell("kill -KILL $(systemctl show ledge --value -p MainPID)");
    machine.until("a new process for one that died", |machine| machine.property("NRestarts") != restarts);
    machine.until("it serves", |machine| machine.property("StatusText") == "1 model ready");
    assert!(machine.shell(ASK).contains("probabilities [6,3]"));

    machine.shell("mkdir -p /etc/ledge && echo '[nope]' > /etc/ledge/ledge.toml");
    machine.ask(&["systemctl", "restart", "ledge"]);
    machine.until("its end", |machine| machine.property("ActiveState") == "failed");
    assert_eq!(machine.property("ExecMainStatus"), "78");
    let journal = machine.ask(&["journalctl", "-u", "ledge", "-o", "cat", "--no-pager"]);
    assert!(journal.contains("nope: unknown field"), "{journal}");
}

#[test]
fn a_release_is_tried_and_taken_within_the_sandbox_and_the_drop_in_fits() {
    let platform = Platform::new();
    platform.add_model("wine_new", 1, &model_folder("wine_mlp"), &[]);
    platform.start("r-1", "models/wine_new/1", &[]);
    let mut machine = Machine::boot(&[(platform.repository().as_path(), "/mnt/platform")]);
    machine.models(&["wine_mlp"]);
    machine.shell(
        "mkdir -p /etc/ledge && cp /mnt/platform/metadata/1.root.json /etc/ledge/root.json && \
         printf '[updates]\nrepository = \"file:///mnt/platform\"\npoll_interval_s = 5\n\
         [egress]\nresidency = [\"eu\"]\n[[egress.allow]]\nhost = \"192.0.2.7:8883\"\nregion = \"eu\"\n' > /etc/ledge/ledge.toml",
    );
    machine.shell(
        "mkdir -p /etc/systemd/system/ledge.service.d && \
         ledge config systemd-drop-in > /etc/systemd/system/ledge.service.d/network.conf && systemctl daemon-reload",
    );
    let verified = machine.run(&["sh", "-c", "systemd-analyze verify --man=no ledge.service 2>&1"]);
    assert_eq!(verified, "");
    assert!(machine.property("IPAddressAllow").contains("192.0.2.7/32"), "{}", machine.property("IPAddressAllow"));
    machine.run(&["systemctl", "start", "ledge"]);
    machine.until("the release is taken", |machine| machine.property("StatusText") == "2 models ready");
    let answer = machine.shell(&ASK.replace("infer wine_mlp", "infer wine_new"));
    assert!(answer.contains("probabilities [6,3]"), "{answer}");
}

#[test]
fn a_daemon_of_which_one_thread_hangs_says_so_until_it_goes_on_and_is_started_anew_when_it_does_not() {
    let mut machine = Machine::boot(&[]);
    machine.models(&["wine_mlp"]);
    machine.drop_in("[Service]\nWatchdogSec=20\n");
    machine.run(&["systemctl", "start", "ledge"]);
    machine.until("it serves", |machine| machine.property("StatusText") == "1 model ready");
    let thread = machine.thread("ledge", "audit").to_string();
    // From now on every system call of only this thread takes a minute, as on a disk that does not respond.
    let stall = |machine: &mut Machine| {
        let tracer = Command::new(path_of("strace"))
            .args(["-qq", "-o", "/dev/null", "-e", "inject=all:delay_enter=60000000", "-p", &thread])
            .spawn()
            .unwrap();
        machine.until("the rest still works, and the status says what does not", |machine| {
            machine.property("StatusText") == "1 model ready; degraded: audit log: nothing moves"
        });
        tracer
    };
    let end = |mut tracer: Child| {
        let _ = tracer.kill();
        tracer.wait().unwrap();
    };
    let tracer = stall(&mut machine);
    end(tracer);
    machine.until("it goes on", |machine| machine.property("StatusText") == "1 model ready");
    assert_eq!(machine.property("NRestarts"), "0");

    let tracer = stall(&mut machine);
    machine.until("a new process", |machine| machine.property("NRestarts") == "1");
    machine.until("it serves", |machine| machine.property("StatusText") == "1 model ready");
    end(tracer);
    let stalled = ["EVENT_NAME=part.stalled", "PART=audit log"];
    let journal = machine.ask(&[&["journalctl", "-u", "ledge", "-o", "json", "--no-pager"][..], &stalled].concat());
    assert!(journal.lines().next().is_some_and(|line| line.starts_with('{')), "{journal}");
}

#[test]
fn root_reads_the_master_key_of_the_service_while_it_runs_and_its_memory_is_its_own() {
    let mut machine = Machine::boot(&[]);
    machine.models(&["wine_mlp"]);
    machine.shell(
        "mkdir -p /etc/ledge && ledge encryption make-key /root/master.key && \
         printf '[encryption]\nmaster_key_file = \"credential:ledge-master\"\n' > /etc/ledge/ledge.toml",
    );
    machine.drop_in("[Service]\nLoadCredential=ledge-master:/root/master.key\n");
    let ask = |machine: &Machine| machine.ask(&["sh", "-c", "ledge encryption status 2>&1; echo ends $?"]);
    let said = ask(&machine);
    assert!(said.contains("sudo ledge") && said.contains("ends 78"), "{said}");
    machine.run(&["systemctl", "start", "ledge"]);
    machine.until("everything is sealed", |machine| ask(machine).contains("ends 0"));
    let said = ask(&machine);
    assert!(said.contains("master key ") && said.contains("audit keys: 2 encrypted with"), "{said}");
    let owner = machine.shell("stat -c %U /proc/$(systemctl show ledge --value -p MainPID)/environ");
    assert_eq!(owner.trim(), "root", "a process of the same user can look into the memory of the daemon");
}
