use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    http: Http,
    name: String,
    rows: Vec<Row>,
    pairs: Vec<(u8, u8, u8)>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Http {
    listen: Vec<std::net::SocketAddr>,
    #[serde(deserialize_with = "in_range::<1, 16, _, _>")]
    threads: usize,
    limits: Limits,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    body: u32,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    shape: Vec<i64>,
    kind: Option<RowKind>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RowKind {
    Input,
    Output,
}

#[track_caller]
fn mistakes(text: &str, expected: &[&str]) {
    let found = parse::<Settings>("f", text).unwrap_err();
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, expected, "in {text}");
}

#[test]
fn a_text_without_mistakes_is_the_value() {
    let text =
        "name = 'x'\n[http]\nthreads = 3\nlimits.body = 7\n[[rows]]\nname = 'r'\nshape = [1, -1]\nkind = 'output'";
    let settings: Settings = parse("f", text).unwrap();
    assert_eq!((settings.http.threads, settings.http.limits.body), (3, 7));
    assert_eq!(settings.rows, [Row { name: "r".into(), shape: vec![1, -1], kind: Some(RowKind::Output) }]);
}

#[test]
fn every_mistake_comes_with_its_line_and_key() {
    mistakes(
        "nam = 'x'\nname = 3\n\n[http]\nlisten = ['127.0.0.1:1', 'x', '[::1]:2', 7]\nthreads = 17\n[http.limits]\nbody = -1\n[other]\n",
        &[
            "f:1: nam: unknown field `nam`, expected one of `http`, `name`, `rows`, `pairs`",
            "f:2: name: expected a string, got 3",
            "f:5: http.listen[1]: invalid socket address syntax",
            "f:5: http.listen[3]: expected socket address, got 7",
            "f:6: http.threads: expected a whole number from 1 to 16, got 17",
            "f:8: http.limits.body: expected a whole number from 0 to 4294967295, got -1",
            "f:9: other: unknown field `other`, expected one of `http`, `name`, `rows`, `pairs`",
        ],
    );
}

#[test]
fn tables_of_an_array_are_told_apart() {
    mistakes(
        "[[rows]]\nname = 1\nshape = [2]\n[[rows]]\nname = 'b'\n[[rows]]\nname = 'c'\nshape = [1]\nkind = 'none'\n",
        &[
            "f:2: rows[0].name: expected a string, got 1",
            "f:4: rows[1]: `shape` is missing",
            "f:9: rows[2].kind: unknown value `none`, expected `input` or `output`",
        ],
    );
}

#[test]
fn what_follows_from_a_mistake_is_not_a_mistake() {
    mistakes(
        "pairs = [[1, 2, 'x'], [1, 2, 3]]\nrows = [{ name = 1, shape = 2 }]",
        &[
            "f:1: pairs[0][2]: expected a whole number from 0 to 255, got \"x\"",
            "f:2: rows[0].name: expected a string, got 1",
            "f:2: rows[0].shape: expected an array, got 2",
        ],
    );
    mistakes(
        "rows = [{ shap = [], name = 'x' }]",
        &[
            "f:1: rows[0]: `shape` is missing",
            "f:1: rows[0].shap: unknown field `shap`, expected one of `name`, `shape`, `kind`",
        ],
    );
}

#[test]
fn a_missing_field_of_the_document_itself_has_no_line() {
    let found = parse::<Row>("f", "name = 'x'\nkind = 1").unwrap_err();
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["f:2: kind: expected a string or a table", "f: `shape` is missing"]);
}

#[test]
fn what_comes_for_the_second_time_is_told_with_the_place_of_the_first() {
    let said =
        |text: &str| check::<toml::Table>("f", text).mistakes.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        said("[a]\nx = 1\n[b] # again\nx = 1\n\n[b]\ny = 1\n"),
        ["f:6:2: duplicate key: [b] is in line 3 already; remove one of them"]
    );
    assert_eq!(
        said("x = 0\n[a]\nx = 1\ny = [\n1]\nx= 2\n"),
        ["f:6:1: duplicate key: x is in line 3 already; remove one of them"]
    );
    // Within one line, the line of the first occurrence says nothing.
    assert_eq!(said("a = {x = 1, x = 2}\n"), ["f:1:13: duplicate key"]);
}

#[test]
fn a_syntax_error_is_one_mistake_with_line_and_column() {
    mistakes("name = 'x'\nhttp = [", &["f:2:9: unclosed array, expected `]`"]);
    mistakes("name = 'ä' 'b'\n", &["f:1:12: unexpected key or value, expected newline, `#`"]);
    mistakes("name = 'a'\nname = 'b'\n", &["f:2:1: duplicate key: name is in line 1 already; remove one of them"]);
}

#[test]
fn every_key_that_is_missing_is_told() {
    mistakes(
        "[[rows]]\n[[rows]]\nname = 3\nkind = 'none'\n",
        &[
            "f:1: rows[0]: `name` is missing",
            "f:1: rows[0]: `shape` is missing",
            "f:2: rows[1]: `shape` is missing",
            "f:3: rows[1].name: expected a string, got 3",
            "f:4: rows[1].kind: unknown value `none`, expected `input` or `output`",
        ],
    );
}

#[test]
fn a_key_that_comes_twice_hides_nothing() {
    mistakes(
        "name = 'x'\nname = 'y'\n[http]\nthreads = 0\n[http]\nlisten = 'x'\n",
        &[
            "f:2:1: duplicate key: name is in line 1 already; remove one of them",
            "f:4: http.threads: expected a whole number from 1 to 16, got 0",
            "f:5:2: duplicate key: [http] is in line 3 already; remove one of them",
            "f:6: http.listen: expected an array, got \"x\"",
        ],
    );
}

#[test]
fn an_entry_of_an_inline_table_has_the_line_where_it_stands() {
    let text = "rows = [\n  { name = 'a',\n    shape = [1] },\n  { name = 'b', shape = [\n 'x', 2,\n 'y' ] },\n\
                {\n name = 7,\n shape = [] }\n]\nhttp = {\n limits = { body = 1 },\n threads = 17 }\n";
    mistakes(
        text,
        &[
            "f:5: rows[1].shape[0]: expected a whole number, got \"x\"",
            "f:6: rows[1].shape[2]: expected a whole number, got \"y\"",
            "f:8: rows[2].name: expected a string, got 7",
            "f:13: http.threads: expected a whole number from 1 to 16, got 17",
        ],
    );
    let places = check::<Settings>("f", text).places;
    for (key, line) in [("rows[0]", 2), ("rows[0].shape", 3), ("rows[2].shape", 9), ("http.limits", 12), ("http", 11)] {
        assert_eq!(places.get(key).map(|place| place.line), Some(line), "{key}");
    }
}

#[test]
fn an_element_behind_one_that_is_left_out_keeps_its_place() {
    let checked = check::<Settings>("f", "[http]\nlisten = [\n7,\n'127.0.0.1:1',\n8,\n'127.0.0.1:2']\n");
    let place = |key: &str| checked.places.get(key).map(|place| (place.line, place.key.as_str()));
    assert_eq!(place("http.listen[0]"), Some((4, "http.listen[1]")));
    assert_eq!(place("http.listen[1]"), Some((6, "http.listen[3]")));
    assert_eq!(
        nearest(&checked.places, "http.listen[1].port", 0).map(|(place, below)| (place.line, below)),
        Some((6, ".port"))
    );
}

#[test]
fn a_problem_that_follows_from_a_mistake_is_known() {
    let misread = Misread { keys: ["a.list[1].name", "a.user", "b.allow[0].host"].map(str::to_owned).to_vec() };
    let explains = |key: &str, others: &[&str]| {
        let problem = Problem::new(key, "is wrong").depending_on(others.iter().copied());
        misread.explains(&problem, str::to_owned)
    };
    for (key, others) in [
        ("a.list[1].name", &[][..]),
        ("a.list", &[]),
        ("a.list[1].name.first", &[]),
        ("a.list[1].kind", &["a.list[1].name"]),
        ("a.password", &["a.users", "a.user"]),
        ("c.to", &["b.allow"]),
    ] {
        assert!(explains(key, others), "{key}: {others:?}");
    }
    for (key, others) in [
        ("a.list[2].name", &[][..]),
        ("a.list[2].kind", &["a.list[2].name"]),
        ("a.password", &[]),
        ("a.username", &[]),
        ("c.to", &["b.allowed"]),
    ] {
        assert!(!explains(key, others), "{key}: {others:?}");
    }
}

#[test]
fn a_problem_in_a_table_has_all_its_keys_there() {
    let problem = Problem::new("kind", "needs a name").depending_on(["name"]).within("list[1]").within("a");
    assert_eq!((problem.key.as_str(), problem.depends_on), ("a.list[1].kind", vec!["a.list[1].name".to_owned()]));
}

#[test]
fn a_text_from_outside_cannot_reach_the_terminal() {
    let text = format!("\"\\u001b[2J{}\" = 1", "x".repeat(1000));
    let found = parse::<Settings>("f", &text).unwrap_err();
    assert!(found.iter().all(|mistake| {
        let shown = mistake.to_string();
        shown.chars().count() < 700 && !shown.contains('\u{1b}')
    }));
}

#[test]
fn accepted_entries_keep_their_lines() {
    let text = "name = 1\n[http]\nthreads = 4\nlimits.body = 'x'\n[[rows]]\nname = 'r'\nshape = [\n1]\n";
    let checked = check::<Settings>("f", text);
    let lines = [
        ("http.threads", 3),
        ("rows", 5),
        ("rows[0]", 5),
        ("rows[0].name", 6),
        ("rows[0].shape", 7),
        ("rows[0].shape[0]", 8),
    ];
    let values = checked.places.iter().filter(|(_, place)| !place.is_section);
    let found: BTreeMap<_, _> = values.map(|(key, place)| (key.as_str(), place.line)).collect();
    assert_eq!(found, lines.into());
    assert!(checked.places.iter().all(|(key, place)| *key == place.key));
    let accepted = "name = \"ledge-stand-in-2\"\n\n[http]\nthreads = 4\n\n[http.limits]\nbody = 1\n\n[[rows]]\nname = \"r\"\nshape = [1]\n";
    assert_eq!(checked.accepted.to_string(), accepted);
    assert_eq!(checked.value.map(|settings| settings.http.threads), Some(4));
    assert_eq!(checked.mistakes.len(), 2);
}

#[test]
fn a_file_of_mistakes_ends_early() {
    // The last one says that there are more.
    for (entries, reported) in [(100_000, 11), (1000, MAX_MISTAKES + 1)] {
        let lines: Vec<String> = (0..entries).map(|n| format!("a{n}=1")).collect();
        assert_eq!(parse::<Settings>("f", &lines.join("\n")).unwrap_err().len(), reported);
    }
}

#[test]
fn keys_nested_into_brackets_cannot_exhaust_the_stack() {
    let key = vec!["a"; 79].join(".");
    for tail in ["", "]"] {
        let text = format!("[{key}]\n{key}={}1{}{tail}", format!("{{{key}=").repeat(78), "}".repeat(78));
        let found = parse::<Settings>("f", &text).unwrap_err();
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_value_or_has_mistakes(text in "\\PC*") {
        prop_assert!(parse::<Settings>("f", &text).err().is_none_or(|found| !found.is_empty()));
    }

    #[test]
    fn any_mix_of_toml_is_a_value_or_has_mistakes(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("[http]\n"), Just("[[rows]]\n"), Just("[rows.x]\n"), Just("name = "), Just("listen = "), Just("1\n"),
                Just("'x'\n"), Just("\n"), Just("["), Just("]"), Just("{"), Just("}"), Just(","), Just("a.b.c = 1\n"),
                Just("http.threads = 1.5\n"), Just("shape = [1, 'x', []]\n"), Just("kind = { input = 1 }\n"),
                Just("pairs = [[1, 2, 3], [1, 2]]\n"), Just("limits = [[{}]]\n"), Just("'' = ''\n"), Just("1979-05-27\n"),
                Just("99999999999999999999\n"), Just("rows = [{ name = 'x', shape = [] }, {}, 1]\n"), Just("é = 1e999\n"),
            ],
            0..12,
        )
    ) {
        let text = parts.concat();
        let checked = check::<Settings>("f", &text);
        prop_assert!(checked.value.is_some() || !checked.mistakes.is_empty(), "{text}");
        prop_assert!(checked.mistakes.len() <= MAX_MISTAKES + 1);
    }
}
