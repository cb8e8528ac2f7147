//! The commands of docs/text.md, with the addresses of the test in place of the usual ones.

use std::process::Command;

use crate::boxes::{named_root, start};
use crate::broker::Broker;
use crate::page::commands;
use crate::tools::run;

#[test]
fn the_page_on_texts_does_what_it_says() {
    const PAGE: &str = include_str!("../../docs/text.md");
    let broker = Broker::new();
    let daemon = start(named_root(&broker, "till-7").models(&["use_multilingual_v3"]));
    let folder = daemon.root.folder.path();
    let said: Vec<_> = commands(PAGE, "\n## Ask it\n")
        .concat()
        .iter()
        .map(|line| {
            if let Some(infer) = line.text.strip_prefix("ledge ") {
                let words: Vec<_> = infer.split_whitespace().collect();
                return run(daemon.root.command(&words).current_dir(folder));
            }
            let text = line.text.replace("127.0.0.1:8000", &daemon.address.to_string());
            let text = text.replace("mosquitto_rr ", &format!("mosquitto_rr -p {} ", broker.port));
            run(Command::new("sh").args(["-c", &text]).current_dir(folder))
        })
        .collect();

    let [over_http, over_mqtt, written, of_lines] = said.as_slice() else { panic!("{said:?}") };
    let vector = |said: &str| {
        let answer: serde_json::Value = serde_json::from_str(said).unwrap();
        answer["embeddings"].as_array().unwrap().clone()
    };
    assert_eq!((vector(over_http)[0]["tokens"].as_u64(), written.as_str()), (Some(9), ""));
    assert_eq!(vector(over_mqtt), vector(over_http));
    assert_eq!(vector(of_lines).len(), 2);
    assert_eq!(vector(of_lines)[0]["tokens"], 9);
}
