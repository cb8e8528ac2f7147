use std::collections::BTreeSet;

use ledge_test_support::toml_layouts as layouts;
use proptest::prelude::*;

use super::*;

#[test]
fn unknown_keys_come_with_problems_or_with_wrong_values() {
    let found = |text: &str| {
        let mistakes = ModelConfig::parse("model.toml", text).unwrap_err();
        mistakes.iter().map(|mistake| (mistake.line.unwrap(), mistake.key.clone())).collect::<BTreeSet<_>>()
    };
    let keys =
        |keys: &[(usize, &str)]| keys.iter().map(|(line, key)| (*line, (*key).to_owned())).collect::<BTreeSet<_>>();
    let problems = "runtimes = 7\ninstance_group = {\n  count = 0 }\n[[golden]]\nfile = \"good.json\"\n[[golden]]\n\
                    min_score = 2\nfile = \"a\"\n[[output]]\nname = \"x\"\nshape = [\n  1,\n  -2 ]\nlabels = \"../x\"\n";
    assert_eq!(
        found(problems),
        keys(&[
            (1, "runtimes"),
            (3, "instance_group.count"),
            (7, "golden[1].min_score"),
            (11, "output[0].shape"),
            (14, "output[0].labels"),
        ])
    );
    let wrong = "runtime = 7\nmax_batch_size = \"x\"\ninstance_group = {\n  cuont = 0,\n  threads = \"many\",\n  min = \"a\" }\n\
                 queue.max_size = 0\n[pipeline.image_classification]\ncrop = [224]\ntop = 0\n";
    assert_eq!(
        found(wrong),
        keys(&[
            (1, "runtime"),
            (2, "max_batch_size"),
            (4, "instance_group.cuont"),
            (5, "instance_group.threads"),
            (6, "instance_group.min"),
            (9, "pipeline.image_classification.crop"),
            (10, "pipeline.image_classification.top"),
        ])
    );
}

/// A model config that has every key.
const FULL_CONFIG: &str = "description = 'd'\nlicense = 'l'\nrelease = 'r'\nruntime = 'openvino'\nmax_batch_size = 8\n\
    version_policy = { latest = 2 }\ninstance_group = { min = 1, max = 2, threads = 1, cores = [0], target_queue_ms = 5, keep_alive_s = 9 }\n\
    dynamic_batching = { max_queue_delay_us = 5, preferred_batch_sizes = [2, 4] }\nqueue = { max_size = 5, max_bytes = 5, default_timeout_ms = 5 }\n\
    response_cache = { enable = true }\nlimits = { max_concurrent = 1, max_rate = 2.5, burst = 1 }\nfeatures = { not_found = 'nan' }\n\
    golden = [{ file = 'a.png', label = 'x', min_score = 0.5 }, { file = 'b.json', tolerance = 0.1 }]\n\
    input = [{ name = 'x', datatype = 'FP32', shape = [-1, 3], features = ['a:b'] }]\noutput = [{ name = 'y', labels = 'l.txt' }]\n\
    pipeline = { image_classification = { crop = [8, 8], mean = [1, 2, 3], top_k = 3, layout = 'NHWC' } }\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_wrong_value_is_reported_with_its_line_whatever_the_layout(
        choices in layouts::choices(),
        spoilt in proptest::collection::vec(any::<prop::sample::Index>(), 1..12),
    ) {
        let mut table: toml::Table = FULL_CONFIG.parse().unwrap();
        ModelConfig::parse("model.toml", &layouts::write(&table, &choices).text).unwrap();
        let all = layouts::leaves(&table);
        let mut expected = BTreeSet::new();
        for key in spoilt.iter().map(|index| &all[index.index(all.len())]) {
            if !expected.iter().any(|other: &String| other.starts_with(key.as_str()) || key.starts_with(other.as_str())) {
                layouts::spoil(&mut table, key);
                expected.insert(key.clone());
            }
        }
        let written = layouts::write(&table, &choices);
        let mistakes = ModelConfig::parse("model.toml", &written.text).unwrap_err();
        let found: BTreeSet<_> = mistakes.iter().map(|mistake| (mistake.line, mistake.key.clone())).collect();
        let expected = expected.into_iter().map(|key| (written.lines.get(&key).copied(), key)).collect();
        prop_assert_eq!(found, expected, "{:#?} in {}", mistakes, written.text);
    }
}
