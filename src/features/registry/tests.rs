use std::time::Duration;

use ledge_base::durable;
use ledge_test_support::toml_layouts as layouts;

use super::*;
use crate::value::{ScalarType, ValueType};
use crate::view::{AggregateFunction, WindowKind};

const EXAMPLE: &str = include_str!("../../../configs/feature_views.d/example.toml.example");

/// A folder of declarations next to that of a store.
struct DeclarationFolder(tempfile::TempDir);

impl DeclarationFolder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.0.path().join("views")).unwrap();
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    fn write(&self, name: &str, text: &str) {
        durable::replace(&self.0.path().join("views").join(name), text.as_bytes()).unwrap();
    }

    fn store(&self) -> std::path::PathBuf {
        self.0.path().join("store")
    }

    fn load(&self) -> Result<Registry, Vec<String>> {
        let loaded = Registry::load(&self.0.path().join("views"), &self.store());
        let root = format!("{}/", self.0.path().display());
        loaded.map_err(|mistakes| mistakes.iter().map(|mistake| mistake.to_string().replace(&root, "")).collect())
    }

    #[track_caller]
    fn mistakes(&self, expected: &[&str]) {
        assert_eq!(self.load().unwrap_err(), expected);
    }
}

/// One view `v` over the entity `m`, with `more` keys.
fn view(more: &str) -> String {
    format!("[[entity]]\nname = 'm'\n[[feature_view]]\nname = 'v'\nentities = ['m']\n{more}")
}

#[track_caller]
fn mistakes(text: &str, expected: &[&str]) {
    DeclarationFolder::new(&[("a.toml", text)]).mistakes(expected);
}

#[test]
fn the_example_declares_what_it_says() {
    let registry = Registry::parse(EXAMPLE).unwrap();
    let stats = registry.view("machine_stats").unwrap();
    assert_eq!((stats.id, &*stats.source.name, stats.ttl), (ViewId(1), "machine_push", Some(Duration::from_hours(1))));
    let [mean, distinct] = stats.aggregations.as_slice() else { panic!("{stats:?}") };
    assert_eq!(
        (&*mean.name, mean.function, mean.kind),
        ("temperature_1h", AggregateFunction::Mean, WindowKind::Sliding)
    );
    assert_eq!(
        (mean.slide_interval, mean.value_type),
        (Duration::from_mins(1), ValueType::Scalar(ScalarType::Float64))
    );
    assert_eq!((&*distinct.name, distinct.kind), ("count_distinct_program_86400s", WindowKind::Tumbling));
    assert_eq!(distinct.slide_interval, distinct.time_window);

    let staffing = registry.view("shift_staffing").unwrap();
    let keys: Vec<(&str, ScalarType)> = staffing.join_keys.iter().map(|key| (&*key.name, key.value_type)).collect();
    assert_eq!(keys, [("machine_id", ScalarType::String), ("shift", ScalarType::String)]);
    assert_eq!((&*staffing.source.name, &*staffing.source.timestamp_field), ("shift_staffing", "event_timestamp"));
    assert_eq!((staffing.ttl, staffing.lateness), (None, Duration::ZERO));

    let service = registry.select(&FeatureSelection::Service("maintenance_v1".into())).unwrap();
    let names: Vec<&str> = service.iter().map(|feature| &**feature.name()).collect();
    assert_eq!(names, ["temperature", "temperature_1h", "operators"]);
}

#[test]
fn the_example_shows_every_key() {
    let table: toml::Table = EXAMPLE.parse().unwrap();
    for key in ["entity", "feature_view", "feature_service"] {
        let shown = table[key].as_array().unwrap()[0].as_table().unwrap();
        let known: &[&str] = match key {
            "entity" => &["name", "join_key", "value_type", "description"],
            "feature_view" => {
                &["name", "description", "entities", "ttl", "lateness", "source", "schema", "aggregation", "unusual"]
            }
            _ => &["name", "description", "features"],
        };
        // The error for an unknown key lists all keys that are accepted.
        let mistake = DeclarationFolder::new(&[("a.toml", &format!("[[{key}]]\nx = 1"))]).load().unwrap_err().concat();
        for name in known {
            assert!(shown.contains_key(*name) && mistake.contains(&format!("`{name}`")), "{key}.{name}");
        }
        assert_eq!(mistake.matches('`').count(), 2 * (known.len() + 1), "{mistake}");
    }
    let aggregation = table["feature_view"][0]["aggregation"][0].as_table().unwrap();
    assert_eq!(aggregation.len(), 6);
    assert_eq!(table["feature_view"][0]["unusual"].as_table().unwrap().len(), 3);
}

#[test]
fn a_value_that_cannot_be_read_is_compared_with_nothing_in_another_file() {
    let views = |name: &str, source: &str| {
        let text = view(&format!("source = {source}\nschema = [{{ name = 'a', dtype = 'Int64' }}]\n"));
        text.replace("'m'", &format!("'{name}'")).replace("'v'", &format!("'v_{name}'"))
    };
    let entity = |name: &str, keys: &str| format!("[[entity]]\nname = '{name}'\n{keys}\n");
    let folder = DeclarationFolder::new(&[
        (
            "a.toml",
            &(views("m", "{ name = 's', timestamp_field = 1 }") + &entity("x", "join_key = 'k'\nvalue_type = 1")),
        ),
        (
            "b.toml",
            &(views("n", "{ name = 's', timestamp_field = 'at' }")
                + &entity("y", "join_key = 'k'\nvalue_type = 'Int64'")),
        ),
        ("c.toml", &entity("p", "join_key = 1")),
        ("d.toml", &entity("q", "join_key = 1\nvalue_type = 'Int64'")),
    ]);
    let keys: Vec<String> = folder
        .load()
        .unwrap_err()
        .iter()
        .map(|mistake| mistake.split(": ").take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        keys,
        [
            "views/a.toml:6 feature_view[0].source.timestamp_field",
            "views/a.toml:11 entity[1].value_type",
            "views/c.toml:3 entity[0].join_key",
            "views/d.toml:3 entity[0].join_key",
        ]
    );
}

#[test]
fn mistakes_of_all_files_come_together_with_their_lines() {
    let views = "[[feature_view]]\nname = 'w__x'\nentities = ['m', 'nobody']\n\nttl = '1y'\nschema = [\n  { name = 'a', dtype = 'Float' },\n  { name = 'm', dtype = 'Int64' },\n  { name = 'b' },\n]\ncolour = 'red'\n";
    let folder = DeclarationFolder::new(&[
        ("b.toml", views),
        (
            "a.toml",
            "[[entity]]\nname = 'm'\nvalue_type = 'Float32'\n[[entity]]\njoin_key = 'x'\n[[feature_service]]\nname = 's'\nfeatures = ['w__x:a', 'v', ':']\n",
        ),
        ("c.toml", "[[entity]\n"),
        ("d.txt", "not looked at"),
        (".e.toml", "nor this"),
    ]);
    folder.mistakes(&[
        "views/b.toml:5: feature_view[0].ttl: \"1y\" is not a length of time: expected a whole number with a unit (ms, s, m, h, d or w), such as \"90s\" or \"30d\"",
        "views/b.toml:7: feature_view[0].schema[0].dtype: unknown type \"Float\": expected Bytes, String, Int32, Int64, Float32, Float64, Bool or UnixTimestamp, or a list of one, such as Array(Float32)",
        "views/b.toml:11: feature_view[0].colour: unknown field `colour`, expected one of `name`, `description`, `entities`, `ttl`, `source`, `lateness`, `schema`, `aggregation`, `unusual`",
        "views/c.toml:1:10: unclosed array table, expected `]`",
    ]);

    // Declarations are compared once all files can be read.
    folder.write("b.toml", &views.replace("1y", "1d").replace("'Float'", "'Float64'"));
    folder.write("c.toml", "");
    folder.mistakes(&[
        "views/a.toml:3: entity[0].value_type: Float32 cannot be a join key, because two floats are seldom equal: use String or Int64",
        "views/a.toml:4: entity[1]: needs the key name",
        "views/a.toml:8: feature_service[0].features[1]: there is no feature view 'v'",
        "views/a.toml:8: feature_service[0].features[2]: there is no feature view ''",
        "views/b.toml:2: feature_view[0].name: has \"__\" in it or \"_\" at its end: full feature names are VIEW__FEATURE",
        "views/b.toml:3: feature_view[0].entities[1]: there is no entity 'nobody': declare it with [[entity]]",
        "views/b.toml:8: feature_view[0].schema[1].name: 'm' is a join key of this view already: give one of them another name",
        "views/b.toml:9: feature_view[0].schema[2]: needs the key dtype",
        "views/b.toml:11: feature_view[0].colour: unknown field `colour`, expected one of `name`, `description`, `entities`, `ttl`, `source`, `lateness`, `schema`, `aggregation`, `unusual`",
    ]);
}

#[test]
fn what_another_file_declares_may_be_referred_to_and_not_declared_again() {
    let folder = DeclarationFolder::new(&[
        ("2.toml", "[[entity]]\nname = 'm'\n"),
        ("1.toml", "[[feature_view]]\nname = 'v'\nentities = ['m']\nschema = [{ name = 'a', dtype = 'Int64' }]\n"),
    ]);
    assert_eq!(folder.load().unwrap().views().count(), 1);
    folder.write("3.toml", "[[feature_view]]\nname = 'v'\nentities = ['m']\nschema = [{ name = 'a', dtype = 'Int64' }]\n[[entity]]\nname = 'n'\njoin_key = 'm'\nvalue_type = 'Int64'\n");
    folder.mistakes(&[
        "views/3.toml:2: feature_view[0].name: there is a feature view 'v' already in views/1.toml:2: give one of them another name",
        "views/3.toml:8: entity[0].value_type: join key 'm' is Int64 here and String in views/2.toml:1: use one type, or two names",
    ]);
}

#[test]
fn a_view_needs_entities_and_a_schema_and_no_name_twice() {
    mistakes(
        "[[feature_view]]\nname = 'v'",
        &[
            "views/a.toml:1: feature_view[0]: needs the key entities: the entities that its rows describe",
            "views/a.toml:1: feature_view[0]: needs the key schema: the columns that are pushed, such as [{ name = \"temperature\", dtype = \"Float32\" }]",
        ],
    );
    let twice = "schema = [{ name = 'a', dtype = 'Int64' }, { name = 'event_timestamp', dtype = 'Int64' }, { name = 'a', dtype = 'Bool' }]\nlateness = '1m'";
    mistakes(
        &view(twice),
        &[
            "views/a.toml:6: feature_view[0].schema[1].name: 'event_timestamp' is the event time of this view already: give one of them another name",
            "views/a.toml:6: feature_view[0].schema[2].name: 'a' is a feature of this view already: give one of them another name",
            "views/a.toml:7: feature_view[0].lateness: is only for aggregations, and this view has none: remove it",
        ],
    );
    mistakes(
        "[[entity]]\nname = 'm'\n[[feature_view]]\nname = 'v'\nentities = ['m', 'm']\nschema = [{ name = 'a', dtype = 'Int64' }]",
        &[
            "views/a.toml:5: feature_view[0].entities[1]: 'm' is a join key of this view already: give one of them another name",
        ],
    );
}

#[test]
fn views_of_one_source_have_one_event_time() {
    let one = "[[feature_view]]\nname = 'w'\nentities = ['m']\nschema = [{ name = 'a', dtype = 'Int64' }]\nsource = { name = 'v', timestamp_field = 'at' }\n";
    mistakes(
        &view(&format!("schema = [{{ name = 'a', dtype = 'Int64' }}]\n{one}")),
        &[
            "views/a.toml:11: feature_view[1].source.timestamp_field: push source 'v' has its event time in 'at' here and in 'event_timestamp' in views/a.toml:3: use one column, or two sources",
        ],
    );
}

#[test]
fn an_aggregation_has_a_column_a_function_and_a_window_that_go_together() {
    let aggregation = |keys: &str| {
        view(&format!(
            "schema = [{{ name = 'x', dtype = 'Float32' }}, {{ name = 't', dtype = 'String' }}, {{ name = 'l', dtype = 'Array(Int64)' }}]\n[[feature_view.aggregation]]\n{keys}"
        ))
    };
    let check = |keys: &str, expected: &str| {
        let expected = format!("views/a.toml:{expected}");
        mistakes(&aggregation(keys), &[&expected]);
    };

    check(
        "column = 'y'\nfunction = 'sum'\ntime_window = '1h'",
        "8: feature_view[0].aggregation[0].column: there is no column 'y' in the schema of this view",
    );
    check(
        "column = 't'\nfunction = 'sum'\ntime_window = '1h'",
        "9: feature_view[0].aggregation[0].function: sum takes numbers, and 't' is String",
    );
    check(
        "column = 'l'\nfunction = 'last'\ntime_window = '1h'",
        "9: feature_view[0].aggregation[0].function: last takes columns that are not lists, and 'l' is Array(Int64)",
    );
    check(
        "column = 'x'\nfunction = 'median'\ntime_window = '1h'",
        "9: feature_view[0].aggregation[0].function: unknown function \"median\": expected count, sum, mean, min, max, last, std or count_distinct",
    );
    check("column = 'x'\nfunction = 'sum'", "7: feature_view[0].aggregation[0]: needs the key time_window");
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '59s'",
        "10: feature_view[0].aggregation[0].time_window: 59s is out of range: expected 1m to 30d",
    );
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '31d'",
        "10: feature_view[0].aggregation[0].time_window: 31d is out of range: expected 1m to 30d",
    );
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '60001ms'",
        "10: feature_view[0].aggregation[0].time_window: 60001ms is not a whole number of seconds",
    );
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '1h'\nslide_interval = '7m'",
        "11: feature_view[0].aggregation[0].slide_interval: 7m does not divide the window of 1h",
    );
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '1h'\nslide_interval = '0s'",
        "11: feature_view[0].aggregation[0].slide_interval: 0ms does not divide the window of 1h",
    );
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '1h'\nslide_interval = '1m'\nkind = 'tumbling'",
        "11: feature_view[0].aggregation[0].slide_interval: is only for sliding windows, and a tumbling one moves by its whole length: remove it",
    );
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '1h'\nkind = 'hopping'",
        "11: feature_view[0].aggregation[0].kind: unknown kind \"hopping\": expected sliding or tumbling",
    );
    check(
        "column = 'x'\nfunction = 'sum'\ntime_window = '1h'\nname = 'x'",
        "7: feature_view[0].aggregation[0]: 'x' is a feature of this view already: give one of them another name",
    );

    for (window, slide_ms) in [("1m", 1_000), ("1h", 60_000), ("30d", 43_200_000), ("61s", 1_220), ("90s", 1_500)] {
        let registry =
            Registry::parse(&aggregation(&format!("column = 't'\nfunction = 'last'\ntime_window = '{window}'")))
                .unwrap();
        let made = &registry.view("v").unwrap().aggregations[0];
        assert_eq!(made.slide_interval, Duration::from_millis(slide_ms), "{window}");
        assert_eq!(made.value_type, ValueType::Scalar(ScalarType::String));
        assert_eq!(*made.name, format!("last_t_{}s", made.time_window.as_secs()));
    }
}

#[test]
fn a_service_names_features_that_there_are_each_once() {
    let text = view(
        "schema = [{ name = 'a', dtype = 'Int64' }]\n[[feature_service]]\nname = 's'\nfeatures = ['v:a', 'v:b', 'w', 'v']\n[[feature_service]]\nname = 's'\n",
    );
    mistakes(
        &text,
        &[
            "views/a.toml:9: feature_service[0].features[1]: feature view 'v' has no feature 'b'",
            "views/a.toml:9: feature_service[0].features[2]: there is no feature view 'w'",
            "views/a.toml:9: feature_service[0].features[3]: v:a is in this service twice",
            "views/a.toml:10: feature_service[1]: needs the key features: a list of \"VIEW:FEATURE\" or \"VIEW\"",
            "views/a.toml:11: feature_service[1].name: there is a feature service 's' already in views/a.toml:8: give one of them another name",
        ],
    );
}

#[test]
fn views_and_features_have_a_limit() {
    let field = |at: usize| format!("{{ name = 'f{at}', dtype = 'Bool' }}");
    let schema = |count: usize| (0..count).map(field).collect::<Vec<_>>().join(",");
    assert_eq!(Registry::parse(&view(&format!("schema = [{}]", schema(512)))).unwrap().views().count(), 1);
    mistakes(
        &view(&format!("schema = [{}]", schema(513))),
        &["views/a.toml:3: feature_view[0]: has 513 features, and the limit is 512: split it into several views"],
    );
    let views = |count: usize| {
        let one = |at: usize| format!("[[feature_view]]\nname = 'v{at}'\nentities = ['m']\nschema = [{}]\n", field(0));
        "[[entity]]\nname = 'm'\n".to_owned() + &(0..count).map(one).collect::<String>()
    };
    assert_eq!(Registry::parse(&views(1024)).unwrap().views().count(), 1024);
    mistakes(
        &views(1025),
        &["views/a.toml:4099: feature_view[1024]: is the 1025th feature view, and the limit is 1024"],
    );
}

const FIRST: &str = "schema = [{ name = 'a', dtype = 'Int64' }, { name = 'b', dtype = 'Int64' }]";

#[test]
fn numbers_are_kept_from_start_to_start() {
    let folder = DeclarationFolder::new(&[("a.toml", &view(FIRST))]);
    let first = folder.load().unwrap();
    first.save(&folder.store()).unwrap();
    folder.write("a.toml", &view("schema = [{ name = 'c', dtype = 'Int64' }, { name = 'b', dtype = 'Int64' }]"));
    let second = folder.load().unwrap();
    let ids: Vec<u16> = second.view("v").unwrap().fields.iter().map(|field| field.id.0).collect();
    assert_eq!(ids, [3, 2]);
    assert!(second.view_by_id(ViewId(1)).is_some() && second.view_by_id(ViewId(2)).is_none());
    second.save(&folder.store()).unwrap();

    folder.write(
        "a.toml",
        &view("schema = [{ name = 'a', dtype = 'Bool' }]").replace("'m'\n[[f", "'m'\njoin_key = 'id'\n[[f"),
    );
    folder.mistakes(&[
        "views/a.toml:6: feature_view[0].entities: the join keys of feature view 'v' were m (String) and are id (String) now: give the view another name, such as 'v_v2'; what is stored keeps its keys",
        "views/a.toml:7: feature_view[0].schema[0].dtype: feature 'a' of feature view 'v' was Int64 and is Bool now: give it another name, such as 'a_v2'; what is stored keeps its type",
    ]);

    folder.write("a.toml", "");
    assert_eq!(folder.load().unwrap().undeclared(), 1);
}

#[test]
fn the_catalog_is_written_only_when_it_has_to_be() {
    let folder = DeclarationFolder::new(&[]);
    folder.load().unwrap().save(&folder.store()).unwrap();
    assert!(!folder.store().exists(), "nothing is declared");

    folder.write("a.toml", &view(FIRST));
    folder.load().unwrap().save(&folder.store()).unwrap();
    let copy = folder.store().join("catalog.copy.json");
    let written = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let before = written(&copy);
    folder.load().unwrap().save(&folder.store()).unwrap();
    assert_eq!(written(&copy), before, "nothing is new");
    std::fs::remove_file(&copy).unwrap();
    folder.load().unwrap().save(&folder.store()).unwrap();
    assert!(copy.exists(), "a lost copy is made again");
}

#[test]
fn a_lost_catalog_is_told_beside_the_other_mistakes_and_only_where_there_are_views() {
    let folder = DeclarationFolder::new(&[("a.toml", &view(""))]);
    std::fs::create_dir_all(folder.store().join("journal")).unwrap();
    let found = folder.load().unwrap_err();
    assert!(found.len() == 2 && found[1].starts_with("store: neither catalog.json nor"), "{found:#?}");
    folder.write("a.toml", "");
    assert!(folder.load().unwrap().is_empty());
}

#[test]
fn a_folder_that_cannot_be_read_is_a_mistake_and_one_that_is_not_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views");
    assert!(Registry::load(&path, folder.path()).unwrap().is_empty());
    durable::replace(&path, b"").unwrap();
    let mistake = Registry::load(&path, folder.path()).unwrap_err()[0].to_string();
    assert!(mistake.contains("cannot be read: Not a directory"), "{mistake}");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir_all(path.join("a.toml")).unwrap();
    assert!(Registry::load(&path, folder.path()).unwrap_err()[0].to_string().contains("a.toml: cannot be read"));
}

#[test]
fn references_find_features_or_say_what_there_is_not() {
    let registry = Registry::parse(EXAMPLE).unwrap();
    let select = |references: &[&str]| {
        let selection = FeatureSelection::Features(references.iter().map(|text| (*text).to_owned()).collect());
        let found = registry.select(&selection).map_err(|error| error.to_string())?;
        Ok::<_, String>(found.iter().map(|feature| feature.name().to_string()).collect::<Vec<_>>())
    };
    assert_eq!(select(&["shift_staffing", "machine_stats:program"]).unwrap(), ["operators", "program"]);
    assert_eq!(select(&["nobody:x"]), Err("Feature view nobody does not exist".into()));
    assert_eq!(select(&["machine_stats:x"]), Err("feature view 'machine_stats' has no feature 'x'".into()));
    assert_eq!(registry.source("machine_push").unwrap()[0].name, registry.view("machine_stats").unwrap().name);
    assert!(
        registry.source("machine_stats").is_err() && registry.select(&FeatureSelection::Service("x".into())).is_err()
    );
}

/// Declarations that have every key.
const FULL: &str = r#"
    entity = [
        { name = "machine", join_key = "machine_id", value_type = "String", description = "d" },
        { name = "line", value_type = "Int64" },
    ]
    feature_service = [{ name = "s", description = "d", features = ["v:rms", "v:rms_10m"] }]
    [[feature_view]]
    name = "v"
    description = "d"
    entities = ["machine", "line"]
    ttl = "1h"
    lateness = "5m"
    source = { name = "p", timestamp_field = "at" }
    schema = [{ name = "rms", dtype = "Float32", optional = true, description = "d" }, { name = "n", dtype = "Int64" }]
    [[feature_view.aggregation]]
    column = "rms"
    function = "mean"
    time_window = "10m"
    slide_interval = "1m"
    kind = "sliding"
    name = "rms_10m"
    [[feature_view]]
    name = "w"
    entities = ["machine"]
    source = { name = "p", timestamp_field = "at" }
    schema = [{ name = "job", dtype = "String" }]
"#;

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn every_wrong_value_is_reported_with_its_line_whatever_the_layout(
        choices in layouts::choices(),
        spoilt in proptest::collection::vec(proptest::prelude::any::<proptest::sample::Index>(), 1..10),
    ) {
        let mut table: toml::Table = FULL.parse().unwrap();
        Registry::parse(&layouts::write(&table, &choices).text).unwrap();
        let all = layouts::leaves(&table);
        let mut expected = std::collections::BTreeSet::new();
        for key in spoilt.iter().map(|index| &all[index.index(all.len())]) {
            if !expected.iter().any(|other: &String| other.starts_with(key.as_str()) || key.starts_with(other.as_str())) {
                layouts::spoil(&mut table, key);
                expected.insert(key.clone());
            }
        }
        let written = layouts::write(&table, &choices);
        let folder = DeclarationFolder::new(&[("a.toml", &written.text)]);
        let mistakes = Registry::load(&folder.0.path().join("views"), &folder.store()).unwrap_err();
        let found: std::collections::BTreeSet<_> =
            mistakes.iter().map(|mistake| (mistake.line, mistake.key.clone())).collect();
        let expected = expected.into_iter().map(|key| (written.lines.get(&key).copied(), key)).collect();
        proptest::prop_assert_eq!(found, expected, "{:#?} in {}", mistakes, written.text);
    }
}

#[test]
fn the_watched_features_are_numbers_of_the_view_and_their_settings_in_range() {
    let declared = |unusual: &str| {
        view(&format!(
            "schema = [{{ name = 'a', dtype = 'Int64' }}, {{ name = 's', dtype = 'String' }}]\n\
             aggregation = [{{ column = 'a', function = 'mean', time_window = '10m', name = 'a_10m' }}]\n\
             unusual = {unusual}\n"
        ))
    };
    let watched = |unusual: &str| {
        let registry = Registry::parse(&declared(unusual)).unwrap();
        registry.view("v").unwrap().unusual.clone().unwrap()
    };
    let all = watched("{}");
    assert_eq!(all.features, [FeaturePosition::Field(0), FeaturePosition::Aggregation(0)]);
    assert_eq!((all.interval, all.alarms_per_week.to_bits()), (Duration::from_mins(1), 1_f64.to_bits()));
    let one = watched("{ features = ['a_10m'], interval = '5m', alarms_per_week = 0.5 }");
    assert_eq!((one.features.as_slice(), one.interval_ms()), (&[FeaturePosition::Aggregation(0)][..], 300_000));
    assert_ne!(one.declaration, all.declaration);
    assert_eq!(watched("{}").declaration, all.declaration);

    let at = |rest: &str| format!("views/a.toml:8: feature_view[0].unusual.{rest}");
    let expected = [
        "interval: 500ms is out of range: expected 1s to 1d",
        "alarms_per_week: NaN is out of range: expected 0.001 to 1000",
        "features[1]: 'a' is in this list twice",
        "features[2]: 's' is String, and only numbers can be watched",
        "features[3]: this view has no feature 'x'",
        "colour: unknown field `colour`, expected one of `features`, `interval`, `alarms_per_week`",
    ];
    let wrong = "{ features = ['a', 'a', 's', 'x'], interval = '500ms', alarms_per_week = nan, colour = 1 }";
    let found = DeclarationFolder::new(&[("a.toml", &declared(wrong))]).load().unwrap_err();
    assert_eq!(found, expected.map(at));

    let many: Vec<String> = (0..33).map(|at| format!("{{ name = 'f{at}', dtype = 'Float32' }}")).collect();
    let many = view(&format!("schema = [{}]\nunusual = {{}}\n", many.join(", ")));
    let found = DeclarationFolder::new(&[("a.toml", &many)]).load().unwrap_err().concat();
    assert!(found.contains("33 features that are numbers") && found.contains("name them in features"), "{found}");
    let none = view("schema = [{ name = 's', dtype = 'String' }]\nunusual = {}\n");
    let found = DeclarationFolder::new(&[("a.toml", &none)]).load().unwrap_err().concat();
    assert!(found.contains("no feature that is a number"), "{found}");
}
