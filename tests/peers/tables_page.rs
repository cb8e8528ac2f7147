//! The commands of docs/tables.md, with the addresses of the test in place of the usual ones.

use std::process::Command;

use crate::boxes::{root, start};
use crate::broker::Broker;
use crate::page::commands;

#[test]
fn the_page_on_tables_does_what_it_says() {
    const PAGE: &str = include_str!("../../docs/tables.md");
    let broker = Broker::new();
    let daemon = start(root(&broker).models(&["bike_demand", "wine_mlp"]));
    let folder = tempfile::tempdir().unwrap();
    let run = |text: &str| {
        let text = [
            ("127.0.0.1:8000", daemon.address.to_string()),
            ("mosquitto_rr ", format!("mosquitto_rr -W 30 -p {} ", broker.port)),
            ("/BOX/", "/box/".to_owned()),
            ("ledge infer", format!("{} infer", env!("CARGO_BIN_EXE_ledge"))),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (usual, here)| text.replace(usual, &here));
        let output = Command::new("sh").args(["-c", &text]).current_dir(&folder).output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let said = |heading: &str| commands(PAGE, heading).iter().flatten().map(|line| run(&line.text)).collect::<Vec<_>>();
    let asked = said("\n## Ask it\n");
    let rows = r#""rows":[{"values":[548.401]},{"values":[497.85095]}]"#;
    assert!(PAGE.contains(rows));
    for answer in &asked[1..] {
        assert!(answer.contains(rows), "{answer}");
    }
    assert_eq!(asked.len(), 4);
    let csv = said("\n## CSV\n");
    assert!(csv[1].starts_with("class,probability_class_0,") && csv[1].contains("\nclass_0,0."), "{}", csv[1]);
    assert!(csv[2].contains("wines.csv:1") && csv[2].contains("class_1"), "{}", csv[2]);
    assert_eq!(csv[3].trim_end(), csv[1].trim_end());
}
