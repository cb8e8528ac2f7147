use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use super::*;

/// A spawner on a thread of this process, with another program for its children. They end with it.
struct TestSpawner {
    spawner: Option<ForkServer>,
    serving: Option<JoinHandle<()>>,
}

impl TestSpawner {
    fn new(program: &str) -> Self {
        let (socket, other) = packets::pair().unwrap();
        let signals = sys::child_signals().unwrap();
        let serving = std::thread::spawn(move || server::serve(&other, &signals).unwrap());
        let program = rustix::fs::open(Path::new(program), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        // There is no process to wait for.
        let counted = CountedProcess::with_files(std::process::id(), None);
        let shared = Arc::new(ForkServerShared::new(socket, rustix::process::getpid(), program, None, counted));
        let reader = shared.clone();
        std::thread::spawn(move || reader.read());
        let spawner = ForkServer { handle: Arc::new(ForkServerHandle { shared }) };
        Self { spawner: Some(spawner), serving: Some(serving) }
    }

    /// Drops the last handle, and waits until the spawner has ended.
    fn end(&mut self) {
        self.spawner = None;
        if let Some(serving) = self.serving.take() {
            serving.join().unwrap();
        }
    }
}

impl std::ops::Deref for TestSpawner {
    type Target = ForkServer;

    fn deref(&self) -> &ForkServer {
        self.spawner.as_ref().unwrap()
    }
}

impl Drop for TestSpawner {
    fn drop(&mut self) {
        self.end();
    }
}

fn input() -> OwnedFd {
    UnixStream::pair().unwrap().0.into()
}

/// Outputs that go nowhere.
fn nowhere() -> [OwnedFd; 2] {
    [(); 2].map(|()| std::fs::File::create("/dev/null").unwrap().into())
}

fn send(child: &SpawnedChild, signal: Signal) {
    rustix::process::pidfd_send_signal(&child.pidfd, signal).unwrap();
}

#[test]
fn a_child_is_started_with_its_files_and_its_end_is_reported() {
    let spawner = TestSpawner::new("/usr/bin/env");
    let (read, write) = rustix::pipe::pipe().unwrap();
    let outputs = [write.try_clone().unwrap(), write];
    let child = spawner.spawn(SpawnVerb::Runtime, &input(), &outputs).unwrap();
    drop(outputs);
    // `env runtime` fails, because no program has the name `runtime`.
    assert_eq!(child.status.recv().unwrap().code(), Some(127));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(read), &mut said).unwrap();
    assert!(said.contains("runtime"), "{said}");
}

#[test]
fn a_child_is_ended_by_its_pidfd_and_its_signal_is_reported() {
    let spawner = TestSpawner::new("/usr/bin/yes");
    let [first, second] = [(); 2].map(|()| spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap());
    assert_ne!(first.pid, second.pid);
    rustix::process::pidfd_send_signal(&second.pidfd, rustix::process::Signal::KILL).unwrap();
    assert_eq!(second.status.recv().unwrap().signal(), Some(9));
    assert!(first.status.try_recv().is_err(), "the other goes on");
}

#[test]
fn a_child_that_is_stopped_goes_on_and_one_that_is_stopped_again_and_again_is_ended_as_frozen() {
    let spawner = TestSpawner::new("/usr/bin/yes");
    let child = spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap();
    while child.status.try_recv().is_err() {
        // It may have ended.
        let _ = rustix::process::pidfd_send_signal(&child.pidfd, Signal::STOP);
        std::thread::yield_now();
    }
    assert!(child.was_frozen.load(Ordering::Acquire));
    let other = spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap();
    send(&other, Signal::KILL);
    assert_eq!(other.status.recv().unwrap().signal(), Some(9));
    assert!(!other.was_frozen.load(Ordering::Acquire));
}

#[test]
fn a_program_that_does_not_start_is_an_error_of_that_start_only() {
    let spawner = TestSpawner::new("/etc/passwd");
    let error = spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap_err();
    assert!(error.to_string().contains("denied"), "{error}");
    assert!(spawner.spawn(SpawnVerb::Trial, &input(), &nowhere()).is_err(), "it still answers");
}

#[test]
fn children_end_with_the_last_handle() {
    let mut spawner = TestSpawner::new("/usr/bin/yes");
    let child = spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap();
    spawner.end();
    assert!(child.status.recv().is_err());
    let gone = rustix::process::pidfd_send_signal(&child.pidfd, rustix::process::Signal::KILL);
    assert_eq!(gone, Err(rustix::io::Errno::SRCH));
}

#[test]
fn a_reset_ends_the_children_of_the_former_program() {
    let spawner = TestSpawner::new("/usr/bin/yes");
    let child = spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap();
    packets::send(&spawner.handle.shared.socket, &ForkRequest::Reset, &[]).unwrap();
    let mut ended = [rustix::event::PollFd::new(&child.pidfd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ended, None).unwrap();
    assert!(spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).is_ok(), "it starts others");
}

#[test]
fn the_end_of_the_spawner_is_told_and_nothing_is_started_any_more() {
    let mut spawner = TestSpawner::new("/usr/bin/yes");
    let child = spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap();
    let (sender, told) = mpsc::channel();
    spawner.on_end(move |end| sender.send(end).unwrap());
    // The spawner sees this as the end of the daemon, and the daemon's side as that of the spawner.
    rustix::net::shutdown(&spawner.handle.shared.socket, Shutdown::Both).unwrap();
    spawner.serving.take().unwrap().join().unwrap();
    assert_eq!(told.recv().unwrap(), "ended");
    assert!(child.status.recv().is_err());
    assert!(spawner.spawn(SpawnVerb::Runtime, &input(), &nowhere()).unwrap_err().to_string().contains("ended"));
    let (sender, told) = mpsc::channel();
    spawner.on_end(move |end| sender.send(end).unwrap());
    assert_eq!(told.recv().unwrap(), "ended");
}

#[test]
fn a_spawner_that_says_nothing_is_ended_and_an_error() {
    let (socket, other) = packets::pair().unwrap();
    #[expect(clippy::zombie_processes, reason = "connecting waits for it")]
    let silent = Command::new("sleep").arg("1000").stdin(other).spawn().unwrap();
    let silent =
        SpawnerProcess { socket, pid: Pid::from_child(&silent), is_code_denied: false, errors: None, files: None };
    let error = silent.connect_within(Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("SIGKILL"), "{error}");
}
