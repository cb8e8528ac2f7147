//! A store in a separate process: one command on each input line, one line of figures for each.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::load::Figures;
use crate::process;

/// The commands to a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Command {
    /// Write these entities once, in batches, as in round `round` of `of` in a day.
    Update {
        from: u64,
        to: u64,
        round: u32,
        of: u32,
    },
    Read {
        callers: usize,
        seconds: f64,
        entities: u64,
    },
    /// Write rows of random entities, one at a time.
    Write {
        callers: usize,
        seconds: f64,
        entities: u64,
    },
    /// Take a snapshot, if the store has snapshots.
    Snapshot,
    /// Remove expired rows, and compact the files.
    Compact,
    Sizes,
    /// Stop in order.
    Close,
}

/// The process of a store.
#[derive(Debug)]
pub struct Child {
    pub contender: Contender,
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts the process. Returns the time until it answers reads.
    pub fn start(contender: Contender, folder: &Path, cache_mb: u64) -> (Self, Figures) {
        let started = Instant::now();
        let mut process = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--child", contender.name(), "--cache-mb", &cache_mb.to_string(), "--folder"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut child = Self { contender, process, input, output };
        let found = child.answer();
        (child, Figures { note: found.note, ..Figures::once(started.elapsed().as_secs_f64()) })
    }

    /// Runs a command to its end.
    pub fn ask(&mut self, command: &Command) -> Figures {
        writeln!(self.input, "{}", serde_json::to_string(command).unwrap()).unwrap();
        let figures = self.answer();
        if matches!(command, Command::Close) {
            self.process.wait().unwrap();
        }
        figures
    }

    fn answer(&mut self) -> Figures {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{}: {error}: {line:?}", self.contender.name()))
    }

    /// Ends the process like a crash.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Runs the store in the child process.
pub fn run(contender: Contender, folder: &Path, cache_mb: u64) {
    // As the daemon does.
    ledge::sys::share_memory_arenas();
    let mut store = contender.open(folder, cache_mb << 20);
    let print_figures = |figures: &Figures| println!("{}", serde_json::to_string(figures).unwrap());
    print_figures(&store.started());
    for line in std::io::stdin().lines() {
        let command: Command = serde_json::from_str(&line.unwrap()).unwrap();
        let started = Instant::now();
        let mut figures = match &command {
            Command::Update { from, to, round, of } => store.update(*from..*to, *round, *of),
            Command::Read { callers, seconds, entities } => store.read(*callers, *seconds, *entities),
            Command::Write { callers, seconds, entities } => store.write(*callers, *seconds, *entities),
            Command::Snapshot => store.snapshot(),
            Command::Compact => store.compact(),
            Command::Sizes => Figures::default(),
            Command::Close => {
                drop(store);
                return print_figures(&Figures::once(started.elapsed().as_secs_f64()));
            }
        };
        if figures.operations == 0 {
            figures.seconds = started.elapsed().as_secs_f64();
        }
        figures.sizes = Some(process::sizes(folder));
        print_figures(&figures);
    }
}
