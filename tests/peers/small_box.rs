//! The smallest box that the documents name, one core and 1 GiB of memory, with all models of the packages on Debian's
//! own kernel. Without KVM a first load takes several tries, each with twice the time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::CHECKOUT;
use crate::containers::{build_image, fill_stage};
use crate::daemon::setup_root;
use crate::machine::{Booted as _, own_folders};
use crate::page::commands;
use crate::virtual_machine::{Hardware, VirtualMachine};

/// The longest that all models may take to load, emulated on a busy machine.
const START_MAX: Duration = Duration::from_mins(75);
/// The longest that a call may take there.
const CALL_MAX_MS: u32 = 3_600_000;

#[test]
#[ignore = "an hour where the processor is emulated: `make soak`"]
fn the_packages_models_run_on_one_core_with_1_gib_of_memory() {
    let [photos, _] = inputs();
    let own = own_folders();
    let mut folders: Vec<_> = own.iter().map(|(from, to)| (from.as_path(), *to)).collect();
    folders.push((&photos.0, photos.1));
    let machine = VirtualMachine::bare(Hardware { cores: 1, ..Hardware::default() }, &folders);
    machine.install();
    let models = models();
    machine.models(&models.iter().map(String::as_str).collect::<Vec<_>>());
    for model in &models {
        let queue = format!("[queue]\\ndefault_timeout_ms = {CALL_MAX_MS}\\n");
        machine.shell(&format!(
            "cd /var/lib/ledge/models/{model} && sed -i \"/^\\[queue\\]/d; /^default_timeout_ms/d\" model.toml && printf '\\n{queue}' >> model.toml"
        ));
    }
    machine.shell("chown -R ledge: /var/lib/ledge");
    machine.run(&["systemctl", "start", "ledge"]);
    let journal = "journalctl -u ledge -o cat --no-pager -n 20";
    until_ready(&machine, &models, journal);
    answers(&machine, &models, "/sys/fs/cgroup/system.slice/ledge.service", journal);
    assert_eq!(machine.property("NRestarts"), "0");
}

/// The container has the limits, as docs/containers.md says them; the machine has more.
#[test]
#[ignore = "an hour where the processor is emulated: `make soak`"]
fn the_image_runs_within_one_core_and_1_gib_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    fill_stage();
    build_image(folder.path(), &["--form", "full"]);
    let [photos, goldens] = inputs();
    let folders = [(folder.path(), "/mnt/image"), (&photos.0, photos.1), (&goldens.0, goldens.1)];
    let machine = VirtualMachine::bare(Hardware { memory_mib: 2560, ..Hardware::default() }, &folders);
    machine.shell(&format!("printf '[serving]\\ndefault_timeout_ms = {CALL_MAX_MS}\\n' > /root/ledge.toml"));
    let loaded = machine.shell("podman load --quiet --input /mnt/image/*.oci.tar");
    let image = loaded.trim().rsplit(' ').next().unwrap();

    let page = std::fs::read_to_string(Path::new(CHECKOUT).join("docs/containers.md")).unwrap();
    let lines = commands(&page, "## With Podman or Docker\n").concat();
    let run = &lines.iter().find(|line| line.text.starts_with("podman run -d --name ledge ")).unwrap().text;
    let (options, _) = run.rsplit_once(' ').unwrap();
    let limits = "--memory 1g --memory-swap 1g --cpus 1";
    assert!(page.contains(&format!("`{limits}`")), "the page has no {limits}");
    machine.shell(&format!("{options} {limits} -v /root/ledge.toml:/etc/ledge/ledge.toml:ro {image}"));

    let group = machine.shell("cat /proc/$(podman inspect --format '{{.State.Pid}}' ledge)/cgroup");
    let group = format!("/sys/fs/cgroup{}", group.trim().rsplit(':').next().unwrap());
    // Podman puts the program into a group below that of the limits, or not.
    let group = machine.shell(&format!(
        "group={group}; while [ $(cat $group/memory.max) = max ]; do group=$(dirname $group); done; echo $group"
    ));
    let group = group.trim();
    assert_eq!(machine.shell(&format!("cat {group}/memory.max")).trim(), (1_u64 << 30).to_string());
    assert_eq!(machine.shell(&format!("cat {group}/cpu.max")).trim(), "100000 100000");
    let log = "podman logs --tail 20 ledge 2>&1";
    let models = models();
    until_ready(&machine, &models, log);
    println!("{}", machine.shell("podman exec ledge /usr/bin/ledge doctor || true"));
    answers(&machine, &models, group, log);
    assert_eq!(
        machine.shell("podman inspect --format '{{.State.Status}} {{.RestartCount}}' ledge").trim(),
        "running 0"
    );
}

/// The folders of photographs and of models with their golden files, and their places in the machine.
fn inputs() -> [(PathBuf, &'static str); 2] {
    [(Path::new(CHECKOUT).join("tests/data/photos"), "/mnt/photos"), (setup_root().join("models"), "/mnt/models")]
}

/// The models of the packages.
fn models() -> Vec<String> {
    let list = std::fs::read_to_string(Path::new(CHECKOUT).join("packaging/models.list")).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Waits until all models are ready.
#[track_caller]
fn until_ready(machine: &VirtualMachine, models: &[String], log: &str) {
    let started = Instant::now();
    while ready(machine) < models.len() {
        let said = String::from_utf8_lossy(&machine.try_shell(log).stdout).into_owned();
        assert!(started.elapsed() < START_MAX, "{} of {} models: {said}", ready(machine), models.len());
        std::thread::sleep(Duration::from_secs(1));
    }
    println!("{} models ready after {:?}", models.len(), started.elapsed());
}

fn ready(machine: &VirtualMachine) -> usize {
    let index = machine.try_shell("curl -sS -X POST 127.0.0.1:8000/v2/repository/index");
    String::from_utf8_lossy(&index.stdout).matches(r#""READY""#).count()
}

/// All models that read files answer one, within the memory of the control group; nothing is ended for its memory.
#[track_caller]
fn answers(machine: &VirtualMachine, models: &[String], group: &str, log: &str) {
    let peak = || {
        let peak = machine.shell(&format!("cat {group}/memory.peak 2>/dev/null || cat {group}/memory.current"));
        peak.trim().parse::<u64>().unwrap() >> 20
    };
    println!("ready: {} MiB", peak());
    for (model, file, kind) in [
        ("efficientnet_lite0", "/mnt/photos/coffee.png", "image/png"),
        ("coco_detector", "/mnt/photos/cows.jpg", "image/jpeg"),
        ("face_detector", "/mnt/photos/astronaut.jpg", "image/jpeg"),
        ("use_multilingual_v3", "/mnt/models/use_multilingual_v3/golden/pl.txt", "text/plain"),
        ("document_reader", "/mnt/models/document_reader/golden/receipt.png", "image/png"),
    ] {
        let status = machine.shell(&format!(
            "curl -sS -o /tmp/answer -w '%{{http_code}}' -H 'content-type: {kind}' --data-binary @{file} 127.0.0.1:8000/v2/models/{model}/infer"
        ));
        let said = || machine.shell(&format!("cat /tmp/answer; {log}"));
        assert_eq!(status, "200", "{model}: {}", said());
        println!("{model}: {} MiB at most", peak());
    }
    let events = machine.shell(&format!("cat {group}/memory.events"));
    println!("{events}{}", machine.shell("head -3 /proc/meminfo"));
    assert!(events.contains("oom_kill 0\n"), "{events}");
    assert_eq!(ready(machine), models.len());
    let ended = machine.ask(&["journalctl", "--no-pager", "-k", "-g", "Out of memory"]);
    assert!(!ended.contains("Out of memory"), "{ended}");
}
