use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use clap::CommandFactory;

use super::*;
use crate::config::Config;

/// A writer that stores its content for assertions.
#[derive(Clone, Default)]
struct OutputCapture(Arc<Mutex<Vec<u8>>>);

impl Write for OutputCapture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pipe that its reader has closed.
struct ClosedPipe;

impl Write for ClosedPipe {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `ledge` with `arguments` after `--root` with an empty folder.
fn ledge(arguments: &[&str]) -> (anyhow::Result<Exit>, String) {
    let capture = OutputCapture::default();
    let folder = tempfile::tempdir().unwrap();
    let line = ["ledge", "--root", folder.path().to_str().unwrap()];
    let cli = Cli::try_parse_from(line.iter().chain(arguments)).unwrap();
    let exit = cli.run(&mut Output::to(capture.clone()));
    let text = String::from_utf8(capture.0.lock().unwrap().clone()).unwrap();
    (exit, text)
}

#[test]
fn the_arguments_are_consistent_and_every_verb_is_described() {
    Cli::command().debug_assert();
    for verb in Cli::command().get_subcommands() {
        assert!(verb.get_about().is_some(), "{}", verb.get_name());
    }
}

#[test]
fn global_options_may_stand_before_and_after_the_verb() {
    let before = Cli::try_parse_from(["ledge", "--root", "r", "--set", "a.b=1", "--set", "c.d=2", "doctor"]).unwrap();
    let after = Cli::try_parse_from(["ledge", "doctor", "--root", "r", "--set", "a.b=1", "--set", "c.d=2"]).unwrap();
    for cli in [before, after] {
        assert_eq!((cli.globals.root, cli.globals.set.len()), (Some("r".into()), 2));
    }
}

#[test]
fn a_name_that_no_model_can_have_is_wrong_usage() {
    for wrong in [
        &["infer", "a/b", "f"][..],
        &["infer", "m"],
        &["infer", "m", "f", "--version", "0"],
        &["infer", "m", "f", "--top", "0"],
    ] {
        let error = Cli::try_parse_from(["ledge"].iter().chain(wrong)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{wrong:?}");
    }
}

#[test]
fn a_good_configuration_is_ok() {
    let (exit, text) = ledge(&["config", "check"]);
    assert_eq!((exit.unwrap(), text.as_str()), (Exit::Success, "ok\n"));
}

#[test]
fn a_bad_configuration_names_its_mistakes_and_ends_with_78() {
    let (exit, text) = ledge(&["config", "check", "--set", "log.level=loud", "--set", "x.y=1"]);
    let error = exit.unwrap_err();
    assert_eq!((Exit::of(&error), text.as_str()), (Exit::Configuration, ""));
    assert!(error.to_string().starts_with("2 mistakes in the configuration:\n  --set log.level: expected"), "{error}");

    let (exit, text) = ledge(&["config", "check", "--json", "--set", "log.level=loud"]);
    assert_eq!(exit.unwrap(), Exit::Configuration);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((report["ok"].as_bool(), report["mistakes"][0]["key"].as_str()), (Some(false), Some("log.level")));
}

#[test]
fn the_output_of_config_show_is_a_valid_configuration() {
    let (exit, text) = ledge(&["config", "show", "--set", "log.level=debug"]);
    assert_eq!(exit.unwrap(), Exit::Success);
    assert!(text.contains("level = \"debug\"  # from --set log.level\n"), "{text}");
    let again: Config = ledge_base::toml_check::parse("shown", &text).unwrap();
    assert_eq!(again.log.level.to_string(), "debug");
    let (_, json) = ledge(&["config", "show", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["http"]["max_connections"], 1024);
}

#[test]
fn bindings_are_listed_with_their_problems() {
    let repository = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(repository.path().join("detect/3")).unwrap();
    let path = format!("repository.path={}", repository.path().display());
    let bindings = "mqtt.bindings=[\
        {topic='cameras/+', model='detect', version=3, publish='seen/{1}', select='$.labels[0]', max_rate=2, retain=true},\
        {name='old', topic='scales', model='detect', version=2, publish='x', inputs={x=['$.kg']}, qos=0, shared=true},\
        {topic='doors', model='gone', publish='y'}]";
    let set = ["--set", &path, "--set", bindings, "--set", "device.group=shop"];

    let (exit, text) = ledge(&[&["mqtt", "bindings"], &set[..]].concat());
    assert_eq!(exit.unwrap(), Exit::Failure);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
    assert_eq!(lines[0], ["No broker is set (mqtt.broker), so nothing is subscribed to."]);
    assert_eq!(lines[2].join("|"), "cameras/+|cameras/+|-|detect/3|seen/{1} ($.labels[0])|the message|2/s|1 retain");
    assert_eq!(lines[3].join("|"), "old|scales (shared)|-|detect/2|x|x = $.kg|-|0");
    assert_eq!(lines[4], ["problem: version 2 of detect is not served"]);
    assert!(lines[6][0].starts_with("problem: there is no model gone in /"), "{text}");

    let (exit, text) = ledge(&[&["mqtt", "bindings", "--json"], &set[..]].concat());
    assert_eq!(exit.unwrap(), Exit::Failure);
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((rows[0]["qos"].as_u64(), rows[0]["publish"].as_str()), (Some(1), Some("seen/{1}")));
    assert_eq!((rows[0]["problem"].as_str(), rows[1]["inputs"]["x"][0].as_str()), (None, Some("$.kg")));
    assert_eq!(rows[1]["subscription"], "$share/shop/scales");

    let (exit, text) = ledge(&["mqtt", "bindings", "--json"]);
    assert_eq!((exit.unwrap(), text.as_str()), (Exit::Success, "[]\n"));
}

/// Runs `ledge` with the address of a port where no broker listens.
fn with_broker(arguments: &[&str], port: u16) -> (anyhow::Result<Exit>, serde_json::Value) {
    let broker = format!("mqtt.broker=mqtt://127.0.0.1:{port}");
    let (exit, text) = ledge(&[arguments, &["--json", "--set", &broker]].concat());
    (exit, serde_json::from_str(&text).unwrap())
}

#[test]
fn a_missing_or_silent_broker_is_reported_by_check() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (exit, report) = with_broker(&["mqtt", "check", "--timeout", "1"], port);
    assert_eq!(exit.unwrap(), Exit::Failure);
    let silent = serde_json::json!([
        {"step": "connection", "ok": false, "untested": false, "detail": "no answer within 1 s"}
    ]);
    assert_eq!((&report["findings"], report["ok"].as_bool()), (&silent, Some(false)));
    drop(listener);
    let (exit, report) = with_broker(&["mqtt", "check"], port);
    assert_eq!((exit.unwrap(), report["findings"].as_array().unwrap().len()), (Exit::Failure, 1));
    let detail = report["findings"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("nothing listens on this port"), "{detail}");

    let (exit, _) = ledge(&["mqtt", "check"]);
    assert!(exit.unwrap_err().to_string().starts_with("no broker is set: add mqtt.broker"));
}

#[test]
fn a_closed_output_is_a_success_and_a_lost_connection_is_a_failure() {
    let cli = Cli::try_parse_from(["ledge", "--root", "/", "config", "show"]).unwrap();
    let error = cli.run(&mut Output::to(ClosedPipe)).unwrap_err();
    assert_eq!(Exit::of(&error), Exit::Success);
    let lost = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
    assert_eq!(Exit::of(&lost), Exit::Failure);
}
