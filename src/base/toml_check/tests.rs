use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    http: Http,
    name: String,
    rows: Vec<TestRow>,
    pairs: Vec<(u8, u8, u8)>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Http {
    listen: Vec<std::net::SocketAddr>,
    #[serde(deserialize_with = "in_range::<1, 16, _, _>")]
    threads: usize,
    limits: TestLimits,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TestLimits {
    body: u32,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestRow {
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
    assert_eq!(settings.rows, [TestRow { name: "r".into(), shape: vec![1, -1], kind: Some(RowKind::Output) }]);
}

#[test]
fn unknown_keys_and_wrong_values_come_with_line_and_key() {
    mistakes(
        "nam = 'x'\nname = 3\n\n[http]\nlisten = ['127.0.0.1:1', 'x', '[::1]:2', 7]\nthreads = 17\nthread = 1\n[http.limits]\nbodi = -1\n[other]\n",
        &[
            "f:1: nam: unknown field `nam`, expected one of `http`, `name`, `rows`, `pairs`",
            "f:2: name: expected a string, got 3",
            "f:5: http.listen[1]: invalid socket address syntax",
            "f:5: http.listen[3]: expected socket address, got 7",
            "f:6: http.threads: expected a whole number from 1 to 16, got 17",
            "f:7: http.thread: unknown field `thread`, expected one of `listen`, `threads`, `limits`",
            "f:9: http.limits.bodi: unknown field `bodi`, expected `body`",
            "f:10: other: unknown field `other`, expected one of `http`, `name`, `rows`, `pairs`",
        ],
    );
    mistakes(
        "pairs = [[1, 2, 'x'], [1, 2, 3]]\nrows = [{ name = 'a', shap = 2 }]",
        &[
            "f:1: pairs[0][2]: expected a whole number from 0 to 255, got a string",
            "f:2: rows[0]: `shape` is missing",
            "f:2: rows[0].shap: unknown field `shap`, expected one of `name`, `shape`, `kind`",
        ],
    );
}

#[test]
fn a_wrong_value_is_told_in_words_of_toml() {
    for (text, message) in [
        ("name = []", "name: expected a string, got an array"),
        ("name = 1979-05-27", "name: expected a string, got a date or a time"),
        ("http = 'x'", "http: expected a table, got a string"),
        ("rows = {}", "rows: expected an array, got a table"),
        ("http.threads = 17", "http.threads: expected a whole number from 1 to 16, got 17"),
        ("http.threads = 1.0", "http.threads: expected a whole number from 1 to 16, got 1.0"),
        ("http.limits.body = -1", "http.limits.body: expected a whole number from 0 to 4294967295, got -1"),
        ("http.limits.body = true", "http.limits.body: expected a whole number from 0 to 4294967295, got true"),
        ("pairs = [[1]]", "pairs[0]: expected an array of 3 entries, got 1 entries"),
        (
            "http.limits.body = 99999999999999999999",
            "http.limits.body: expected a whole number from 0 to 4294967295, got a larger number",
        ),
        (
            "rows = [{ name = 'r', shape = [], kind = 'none' }]",
            "rows[0].kind: unknown value `none`, expected `input` or `output`",
        ),
        ("rows = [{ name = 'r', shape = [], kind = 1 }]", "rows[0].kind: expected a string or a table"),
        (
            "rows = [{ name = 'r', shape = [], kind = { input = 1, output = 1 } }]",
            "rows[0].kind: expected a table of one entry",
        ),
    ] {
        mistakes(text, &[&format!("f:1: {message}")]);
    }
}

#[test]
fn no_text_of_the_wrong_type_is_quoted() {
    for key in ["http", "rows", "pairs", "http.listen", "http.threads", "http.limits", "http.limits.body"] {
        let found = parse::<Settings>("f", &format!("{key} = 'geheim'")).unwrap_err();
        assert!(found.len() == 1 && !found[0].to_string().contains("geheim"), "{found:?}");
    }
}

#[test]
fn what_follows_from_a_wrong_value_is_no_mistake() {
    // An array of three without its first value is too short, and a row without its name is incomplete.
    mistakes(
        "pairs = [['x', 2, 3], [4, 5]]\nrows = [{ name = 1, shape = 2 }, { shape = [] }]",
        &[
            "f:1: pairs[0][0]: expected a whole number from 0 to 255, got a string",
            "f:1: pairs[1]: expected an array of 3 entries, got 2 entries",
            "f:2: rows[0].name: expected a string, got 1",
            "f:2: rows[0].shape: expected an array, got 2",
            "f:2: rows[1]: `name` is missing",
        ],
    );
}

#[test]
fn the_sections_without_a_wrong_value_are_left() {
    let checked = check::<Settings>("f", "name = 'x'\n[http]\nthreads = 0\n[[rows]]\nname = 'r'\nshape = []\n");
    assert_eq!((checked.unread, checked.mistakes.len()), (["http".to_owned()].into(), 1));
    let value = checked.value.unwrap();
    assert_eq!((value.name.as_str(), value.http, value.rows.len()), ("x", Http::default(), 1));
    assert_eq!(checked.table.keys().collect::<Vec<_>>(), ["name", "rows"]);
}

#[test]
fn a_missing_section_has_no_line() {
    let found = |text| parse::<TestRow>("f", text).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(found("name = 'x'\nkind = 'input'"), ["f: `shape` is missing"]);
    assert_eq!(
        found("name = 1\nshape = 2\n"),
        ["f:1: name: expected a string, got 1", "f:2: shape: expected an array, got 2"]
    );
}

#[test]
fn a_syntax_error_is_one_mistake_with_line_and_column() {
    mistakes("name = 'x'\nhttp = [", &["f:2:9: unclosed array, expected `]`"]);
    mistakes("name = 'ä' 'b'\n", &["f:1:12: unexpected key or value, expected newline, `#`"]);
    mistakes("name = 'a'\nname = 'b'\n[http]\nthreads = 0", &["f:2:1: duplicate key"]);
}

#[test]
fn every_entry_has_the_line_where_it_stands() {
    let text = "rows = [\n  { name = 'a',\n    shape = [1] },\n  { name = 'b', shape = [\n 2 ] },\n\
                {\n name = 'c',\n shape = [] }\n]\nhttp = {\n limits = { body = 1 },\n threads = 7 }\n[[pairs]]\n";
    let places = check::<Settings>("f", text).places;
    for (key, line, is_section) in [
        ("rows[0]", 2, false),
        ("rows[0].shape", 3, false),
        ("rows[1].shape[0]", 5, false),
        ("rows[2].shape", 8, false),
        ("http", 10, true),
        ("http.limits", 11, true),
        ("http.threads", 12, false),
        ("pairs[0]", 13, false),
    ] {
        assert_eq!(places.get(key), Some(&TomlEntryPlace { line, is_section }), "{key}");
    }
    assert_eq!(nearest(&places, "rows[2].kind", 0).map(|place| place.line), Some(6));
    assert_eq!(nearest(&places, "http.listen", "http.listen".len()), None);
}

#[test]
fn problems_of_the_value_come_with_their_lines_once_every_section_could_be_read() {
    let problems = |text: &str| {
        let mut checked = check::<Settings>("f", text);
        checked.check_value("f", |_| vec![ValueProblem::new("limits.body", "is odd").within("http")]);
        checked.mistakes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(problems("[http]\nlimits.body = 1"), ["f:2: http.limits.body: is odd"]);
    assert_eq!(problems("[http]\n"), ["f:1: http.limits.body: is odd"]);
    assert_eq!(problems("name = 1\nhttp.limits.body = 1"), ["f:1: name: expected a string, got 1"]);
    assert_eq!(ValueProblem::new("[1].kind", "is odd").within("list").within("a").key, "a.list[1].kind");
}

#[test]
fn a_text_from_outside_cannot_reach_the_terminal() {
    let text = format!("\"\\u001b[2J{}\" = 1", "x".repeat(1000));
    let found = parse::<Settings>("f", &text).unwrap_err();
    assert!(found.iter().all(|mistake| {
        let shown = mistake.to_string();
        shown.chars().count() < 2 * SHOWN_CHARS_MAX + 40 && !shown.contains('\u{1b}')
    }));
}

#[test]
fn a_file_of_mistakes_ends_early() {
    // The last one says that there are more.
    let lines: Vec<String> = (0..100_000).map(|n| format!("a{n}=1")).collect();
    assert_eq!(parse::<Settings>("f", &lines.join("\n")).unwrap_err().len(), MAX_MISTAKES + 1);
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
        // The rest of it is a text without a wrong value.
        prop_assert!(checked.value.is_none() || check::<Settings>("f", &checked.table.to_string()).unread.is_empty());
    }
}
