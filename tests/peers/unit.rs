//! The unit of the package on Debian's own kernel: the attempts of a process of models there, and the limits and the
//! filter that need its control groups. A container of `systemd.rs` has neither.

use std::time::Instant;

use serde_json::Value;

use crate::machine::Booted as _;
use crate::virtual_machine::{Hardware, VirtualMachine};

/// The tasks that the unit allows its user, and the share of them that a process of models can take.
const TASKS_MAX: u64 = 2048;
const TASKS_OF_MODELS_MAX: u64 = TASKS_MAX / 4 * 3;

/// Boots the unit with the tiny model twice, one of which is asked for faults.
fn start(drop_in: &str) -> VirtualMachine {
    let mut machine = VirtualMachine::boot(Hardware::default());
    machine.models(&["wine_mlp"]);
    machine.shell(
        "cd /var/lib/ledge/models && mv wine_mlp healthy && cp -r healthy faulty && chown -R ledge: /var/lib/ledge",
    );
    machine.shell("printf '[queue]\\ndefault_timeout_ms = 600000\\n' >> /var/lib/ledge/models/faulty/model.toml");
    if !drop_in.is_empty() {
        machine.drop_in(drop_in);
    }
    machine.run(&["systemctl", "start", "ledge"]);
    machine.until("it serves", |machine| machine.property("StatusText") == "2 models ready");
    machine
}

/// Calls a model with these bytes as its numbers, and returns the status.
fn call(machine: &VirtualMachine, model: &str, begin: &str) -> String {
    const LENGTH: usize = 13 * 4;
    let head =
        r#"{"inputs":[{"name":"features","datatype":"FP32","shape":[1,13],"parameters":{"binary_data_size":52}}]}"#;
    machine.shell(&format!(
        "{{ printf '%s' '{head}' '{begin}'; head -c {} /dev/zero; }} | curl -sS -o /tmp/answer -w '%{{http_code}}' \
         -H 'inference-header-content-length: {}' --data-binary @- 127.0.0.1:8000/v2/models/{model}/infer",
        LENGTH - begin.len(),
        head.len(),
    ))
}

/// The lines of JSON with this message that processes of models wrote to their standard error, from the daemon's log.
fn printed(machine: &VirtualMachine, message: &str) -> Vec<Value> {
    let journal = machine.ask(&["journalctl", "-u", "ledge", "-o", "json", "--no-pager"]);
    let entries = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let said = entries.filter_map(|entry| serde_json::from_str::<Value>(entry["SAID"].as_str()?).ok());
    said.filter(|line| line["message"] == message).collect()
}

/// The finding of this name, as `ledge doctor` has it.
fn finding(machine: &VirtualMachine, name: &str) -> Value {
    let report = machine.ask(&["ledge", "doctor", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let mut named = report["checks"].as_array().unwrap().iter().filter(|check| check["name"] == name);
    let found = named.next().unwrap_or_else(|| panic!("no {name} in {report}")).clone();
    assert_eq!(named.next(), None, "{name} is more than one line");
    found
}

fn group(machine: &VirtualMachine, file: &str) -> u64 {
    let value = machine.shell(&format!("cat /sys/fs/cgroup/system.slice/ledge.service/{file}"));
    value.trim().parse().unwrap_or_else(|_| panic!("{file}: {value}"))
}

#[test]
fn every_attack_of_a_process_of_models_is_denied_and_doctor_says_what_does_it() {
    const OUTSIDE: &str = "/var/lib/ledge/outside/f";
    let mut machine = start("");
    machine.shell("install -d -o ledge -g ledge /var/lib/ledge/outside");
    machine.shell(&format!("echo secret > {OUTSIDE} && chown ledge: {OUTSIDE}"));
    machine.shell(&format!("systemd-run --quiet systemd-socket-activate --listen=@{OUTSIDE} /bin/cat"));
    machine.until("somebody listens", |machine| machine.ask(&["cat", "/proc/net/unix"]).contains(OUTSIDE));

    let status = call(&machine, "faulty", &format!("!FAULT:p{OUTSIDE}"));
    assert_eq!(status, "200");
    machine.until("all is attempted", |machine| !printed(machine, "probed").is_empty());
    let attempts = printed(&machine, "probe");
    assert!(attempts.len() > 50, "{attempts:?}");
    // The unit hides the folders of other processes (ProtectProc=), as if there were none.
    let is_hidden = |attempt: &Value| {
        let failed = attempt["outcome"]["failed"].as_str().unwrap_or_default();
        failed.starts_with("No such file") && attempt["attempt"].as_str().unwrap().ends_with("of its parent")
    };
    let is_denied = |attempt: &&Value| !attempt["outcome"]["denied"].is_null() || is_hidden(attempt);
    let (denied, allowed): (Vec<_>, Vec<_>) = attempts.iter().partition(is_denied);
    assert!(allowed.is_empty(), "{allowed:?}");
    for word in
        ["truncate a file outside without access", "make a socket", "abstract socket", "user namespace", "more threads"]
    {
        let is_tried = |attempt: &&Value| attempt["attempt"].as_str().unwrap().contains(word);
        assert!(denied.iter().copied().any(|attempt| is_tried(&attempt)), "no attempt of {word}: {attempts:?}");
    }
    assert_eq!(machine.shell(&format!("cat {OUTSIDE}")), "secret\n");

    // A mechanism that is not in force there has its reason and its substitute.
    let found = finding(&machine, "seal of models");
    let detail = found["detail"].as_str().unwrap();
    assert_eq!(found["status"], "info", "{found}");
    for words in
        ["in force, but for ", "RestrictNamespaces=", "only the list of system calls", "of 2048 that its user may have"]
    {
        assert!(detail.contains(words), "no {words}: {detail}");
    }
    assert!(!detail.contains("no daemon"), "{detail}");
    machine.run(&["systemctl", "stop", "ledge"]);
    let found = finding(&machine, "seal of models");
    let detail = found["detail"].as_str().unwrap();
    // This command is run by root, outside the unit.
    assert!(detail.starts_with("no daemon answers this; in a process that this command started: "), "{detail}");
    assert!(!detail.contains("RestrictNamespaces="), "{detail}");
}

#[test]
fn a_process_of_models_that_starts_threads_without_end_leaves_the_daemon_its_own() {
    let mut machine = start("");
    assert_eq!(group(&machine, "pids.max"), TASKS_MAX);
    let (pid, usual) = (machine.property("MainPID"), group(&machine, "pids.current"));
    println!("tasks with two models on two cores: {usual}");
    assert_eq!(call(&machine, "faulty", "!FAULT:t"), "200");
    machine.until("it has its threads", |machine| !printed(machine, "threads").is_empty());
    println!("{}", printed(&machine, "threads")[0]);
    let during = group(&machine, "pids.current");
    assert!(during <= TASKS_OF_MODELS_MAX && during > TASKS_OF_MODELS_MAX / 2, "{during}");

    // The daemon starts threads and processes as before.
    assert_eq!(call(&machine, "healthy", ""), "200");
    let started = Instant::now();
    assert_eq!(finding(&machine, "seal of models")["status"], "info");
    println!("doctor: {:?}", started.elapsed());
    // Its folder in /proc is hidden there.
    machine.shell("curl -sS 127.0.0.1:8000/metrics | grep -q '^ledge_runtime_process_resident_memory_bytes{'");
    machine.shell("kill -KILL $(grep -lzx '[r]untime' /proc/[0-9]*/cmdline | cut -d / -f 3)");
    machine.until("it answers again", |machine| call(machine, "faulty", "") == "200");
    assert_eq!((machine.property("MainPID"), machine.property("NRestarts")), (pid, "0".to_owned()));
    assert!(group(&machine, "pids.current") <= usual * 2);
}

#[test]
fn a_process_of_models_that_takes_all_memory_ends_within_the_limit_of_the_unit() {
    const MEMORY_MAX: u64 = 400 << 20;
    let mut machine = start("[Service]\nMemoryMax=400M\n");
    let pid = machine.property("MainPID");
    assert_eq!(group(&machine, "memory.max"), MEMORY_MAX);
    assert_eq!(call(&machine, "faulty", "!FAULT:m"), "502");
    println!("{}", machine.shell("cat /tmp/answer; cat /sys/fs/cgroup/system.slice/ledge.service/memory.events"));
    assert!(group(&machine, "memory.peak") <= MEMORY_MAX);
    assert_eq!(call(&machine, "healthy", ""), "200");
    machine.until("it answers again", |machine| call(machine, "faulty", "") == "200");
    assert_eq!((machine.property("MainPID"), machine.property("NRestarts")), (pid, "0".to_owned()));
}

#[test]
fn a_connection_from_an_address_that_the_unit_does_not_allow_is_dropped() {
    /// The exit code of curl for a server that does not answer in time.
    const TIMEOUT: Option<i32> = Some(28);
    let mut machine = start("");
    // A box in a network, and a client in it.
    machine.shell(
        "ip netns add client && ip link add box type veth peer name client netns client && \
         ip address add 192.0.2.1/24 dev box && ip link set box up && \
         ip -n client address add 192.0.2.2/24 dev client && ip -n client link set client up",
    );
    machine.shell("ledge keys create till-7 --role infer --output /root/till-7.key");
    machine.shell(
        "mkdir -p /etc/ledge && printf '[http]\\nlisten = [\"127.0.0.1:8000\", \"unix:/run/ledge/ledge.sock\", \"https://0.0.0.0:8443\"]\\n\
         [http.tls]\\nself_signed = true\\n' > /etc/ledge/ledge.toml && ledge config check && \
         { systemctl restart ledge || { journalctl -u ledge -o cat >&2; false; }; }",
    );
    let ask = |machine: &VirtualMachine| {
        let line =
            "ip netns exec client curl -sk -o /dev/null --connect-timeout 10 https://192.0.2.1:8443/v2/health/live";
        machine.try_shell(line).status.code()
    };
    let asked_here = "curl -sk -o /dev/null https://127.0.0.1:8443/v2/health/live";
    machine.until("it listens", |machine| machine.try_shell(asked_here).status.success());
    assert_eq!(ask(&machine), TIMEOUT);

    machine.drop_in("[Service]\nIPAddressAllow=192.0.2.2\n");
    machine.run(&["systemctl", "restart", "ledge"]);
    machine.until("it listens", |machine| machine.try_shell(asked_here).status.success());
    assert_eq!(ask(&machine), Some(0));
}
