use ledge_base::names::{DeviceName, ModelName};
use proptest::prelude::*;

use super::*;

fn filter(text: &str) -> TopicFilter {
    text.parse().unwrap()
}

fn topic(text: &str) -> TopicName {
    text.parse().unwrap()
}

fn template(text: &str) -> TopicTemplate {
    text.parse().unwrap()
}

fn device() -> DeviceName {
    "till-7".parse().unwrap()
}

fn model() -> ModelName {
    "person_detect".parse().unwrap()
}

#[test]
fn a_wildcard_is_a_whole_level_and_names_have_none() {
    for good in ["a", "/", "+", "#", "+/#", "a//b", "/+", "$SYS/#", "$share/g/a/+", "$share/g//", "a/{1}", "ä/ "] {
        assert_eq!(filter(good).as_str(), good);
    }
    let long = "x".repeat(65_536);
    for bad in ["", "a+", "a/#/b", "##", "a/b#", "\0", "$share/g", "$share//a", "$share/+/a", "$share/g/", &long] {
        assert!(bad.parse::<TopicFilter>().is_err(), "{bad}");
    }
    for bad in ["", "+", "a/#", "a\0", &long] {
        assert!(bad.parse::<TopicName>().is_err(), "{bad}");
    }
}

#[test]
fn a_topic_in_a_log_line_neither_ends_the_line_nor_moves_the_cursor() {
    for (text, shown) in [
        ("a/b ä {1}\\n\"", "a/b ä {1}\\n\""),
        ("a\nERROR: b", "a\\nERROR: b"),
        ("\r\u{1b}[2Ka\t", "\\r\\u{1b}[2Ka\\t"),
        ("a\u{85}\u{9b}\u{7f}", "a\\u{85}\\u{9b}\\u{7f}"),
    ] {
        assert_eq!(topic(text).to_string(), shown);
        assert_eq!(topic(text).as_str(), text);
    }
}

#[test]
fn captures_are_what_the_wildcards_stand_for() {
    let captures = |of: &str, name: &str| {
        let name = topic(name);
        filter(of).captures(&name).map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>().join("|"))
    };
    assert_eq!(captures("cameras/+/snapshot", "cameras/door/snapshot").as_deref(), Some("door"));
    assert_eq!(captures("+/+", "/finance").as_deref(), Some("|finance"));
    assert_eq!(captures("sport/#", "sport/tennis/1").as_deref(), Some("tennis/1"));
    assert_eq!(captures("sport/#", "sport").as_deref(), Some(""));
    assert_eq!(captures("a/+/#", "a/b").as_deref(), Some("b|"));
    assert_eq!(captures("a", "a").as_deref(), Some(""));
    assert_eq!(captures("$share/g/a/+", "a/b").as_deref(), Some("b"));
    for (of, name) in [("+", "a/b"), ("a/+", "a"), ("a", "a/"), ("sport/#", "sports"), ("a/b", "a/c"), ("a/b", "a")] {
        assert_eq!(captures(of, name), None, "{of} {name}");
    }
}

#[test]
fn a_leading_wildcard_does_not_match_the_brokers_own_topics() {
    let own = topic("$SYS/broker/load");
    assert!(!filter("#").matches(&own) && !filter("+/broker/load").matches(&own));
    assert!(filter("$SYS/#").matches(&own) && filter("$SYS/+/load").matches(&own));
    assert!(!filter("#").overlaps(&filter("$SYS/#")) && !filter("$SYS/a").overlaps(&filter("+/a")));
    assert!(filter("$SYS/+/load").overlaps(&filter("$SYS/broker/#")));
}

#[test]
fn two_filters_overlap_when_a_topic_matches_both() {
    for (one, other) in [("a/#", "a"), ("a/+", "+/b"), ("a/#", "+/+/c"), ("#", "a"), ("$share/g/a", "a"), ("a/#", "#")]
    {
        assert!(filter(one).overlaps(&filter(other)), "{one} {other}");
    }
    for (one, other) in [("a/+", "a"), ("a/+", "b/+"), ("a/+/c", "+/b/d"), ("a/b", "a/b/c"), ("a/b/#", "a")] {
        assert!(!filter(one).overlaps(&filter(other)), "{one} {other}");
    }
}

#[test]
fn a_shared_filter_is_that_of_its_group() {
    let own = filter("cameras/+");
    let shared = TopicFilter::shared(&device(), &own);
    assert_eq!(shared.as_str(), "$share/till-7/cameras/+");
    assert_eq!((shared.unshared(), own.unshared()), (own.clone(), own.clone()));
    assert!(shared.is_shared() && !own.is_shared());
    assert_eq!(shared.to_string().parse(), Ok(shared));
}

#[test]
fn a_template_is_filled_with_captures_and_names() {
    let fill =
        |text: &str, captures: &[&str]| template(text).fill(captures, &device(), &model()).map(|t| t.to_string());
    assert_eq!(fill("vision/{1}/objects", &["door"]), Ok("vision/door/objects".into()));
    assert_eq!(fill("{device}/{model}/{2}-{1}", &["a", "b/c"]), Ok("till-7/person_detect/b/c-a".into()));
    assert_eq!(fill("plain", &[]), Ok("plain".into()));
    for (text, captures) in [("{1}", &[""][..]), ("{1}/x", &["$SYS"]), ("{2}", &["a"]), ("{1}", &[&"x".repeat(65_536)])]
    {
        assert!(fill(text, captures).is_err(), "{text}");
    }
}

#[test]
fn a_template_that_could_not_be_filled_is_refused() {
    for bad in ["", "a/+", "#", "$SYS/x", "{0}", "{10}", "{}", "{topic}", "{1", "1}", "{{1}}", "a{", "\0"] {
        assert!(bad.parse::<TopicTemplate>().is_err(), "{bad}");
    }
    assert_eq!([template("a/{2}/{9}{1}").highest_capture(), template("{device}").highest_capture()], [9, 0]);
}

#[test]
fn a_template_becomes_the_filter_of_all_its_topics() {
    let made = |text: &str, of: &str| template(text).as_filter(&filter(of)).to_string();
    assert_eq!(made("vision/{1}/objects", "cameras/+/snapshot"), "vision/+/objects");
    assert_eq!(made("vision/{1}/objects", "cameras/#"), "vision/#");
    assert_eq!(made("a/cam-{1}/b{2}c", "+/+"), "a/+/+");
    assert_eq!(made("a/cam-{2}/b", "+/#"), "a/#");
    assert_eq!(made("{device}/out/{model}", "x"), "+/out/+");
    assert_eq!(made("a/b", "x"), "a/b");
    assert_eq!(made("{1}", "#"), "#");
}

#[test]
fn a_box_knows_its_topics() {
    let topics = DeviceTopics { device: device(), group: "shop".parse().ok(), has_platform: false };
    assert_eq!(topics.infer().as_str(), "ledge/v1/till-7/infer/#");
    assert_eq!(topics.group_infer(), "$share/shop/ledge/v1/shop/infer/#".parse().ok());
    assert_eq!(topics.online().as_str(), "ledge/v1/till-7/online");
    assert_eq!(topics.reported().as_str(), "ledge/v1/till-7/reported");
    assert_eq!(DeviceTopics::result(&device(), &model()).as_str(), "ledge/v1/till-7/result/person_detect");
}

#[test]
fn a_call_to_the_box_or_its_group_has_a_route() {
    let topics = DeviceTopics { device: device(), group: "shop".parse().ok(), has_platform: false };
    let route = |text: &str| topics.route(&topic(text));
    let owned = |owner: &str, version: Option<&str>| InferRoute {
        owner: owner.parse().unwrap(),
        model: model(),
        version: version.map(|number| number.parse().unwrap()),
    };
    assert_eq!(route("ledge/v1/till-7/infer/person_detect"), Some(Ok(owned("till-7", None))));
    assert_eq!(route("ledge/v1/shop/infer/person_detect/versions/3"), Some(Ok(owned("shop", Some("3")))));
    for other in ["ledge/v1/other/infer/m", "ledge/v1/till-7/result/m", "ledge/v1/till-7/infer", "cameras/infer/m"] {
        assert_eq!(route(other), None, "{other}");
    }
    for (wrong, word) in [
        ("", "infer/MODEL"),
        (".hidden", "starts with a dot"),
        ("m/versions/0", "model version"),
        ("m/versions", "infer/MODEL"),
        ("m/versions/1/x", "infer/MODEL"),
        ("m/", "infer/MODEL"),
        ("ä", "model name"),
    ] {
        let error = route(&format!("ledge/v1/till-7/infer/{wrong}")).unwrap().unwrap_err().to_string();
        assert!(error.contains(word) || (wrong.is_empty() && error.contains("is empty")), "{wrong:?}: {error}");
    }
}

/// Matches by slices of levels, which the matcher itself does not use.
fn matches_naively(filter: &str, topic: &str) -> bool {
    let (filter, topic): (Vec<_>, Vec<_>) = (filter.split('/').collect(), topic.split('/').collect());
    if topic[0].starts_with('$') && matches!(filter[0], "+" | "#") {
        return false;
    }
    let (fixed, open) = match filter.split_last() {
        Some((&"#", fixed)) => (fixed, true),
        _ => (filter.as_slice(), false),
    };
    let enough = if open { topic.len() >= fixed.len() } else { topic.len() == fixed.len() };
    enough && fixed.iter().zip(&topic).all(|(level, own)| *level == "+" || level == own)
}

/// Few levels of few letters, so that many pairs match.
fn some_topic() -> impl Strategy<Value = String> {
    "([ab$]?/){0,3}[ab$]?".prop_filter("empty", |text| !text.is_empty())
}

fn some_filter() -> impl Strategy<Value = String> {
    "((\\+|[ab$]?)/){0,3}(\\+|#|[ab$]?)".prop_filter("empty", |text| !text.is_empty())
}

fn some_template() -> impl Strategy<Value = String> {
    "([ab]?(\\{[1-4]\\}|\\{device\\}|\\{model\\})?[ab]?/){0,2}[ab]?\\{[1-4]\\}[ab]?(/[ab])?"
}

proptest! {
    #[test]
    fn matching_agrees_with_a_naive_matcher(of in some_filter(), name in some_topic()) {
        prop_assert_eq!(filter(&of).matches(&topic(&name)), matches_naively(&of, &name));
    }

    #[test]
    fn captures_put_back_into_the_filter_give_the_topic(of in some_filter(), name in some_topic()) {
        let name = topic(&name);
        if let Some(captures) = filter(&of).captures(&name) {
            prop_assert_eq!(captures.len(), filter(&of).capture_count());
            let mut left = captures.iter();
            let levels = of.split('/').map(|level| if matches!(level, "+" | "#") { left.next().unwrap() } else { level });
            let back = levels.collect::<Vec<_>>().join("/");
            // A `#` matches the empty text after "a" as after "a/".
            let below = [name.as_str(), "/"].concat();
            prop_assert!(back == name.as_str() || back == below);
        }
    }

    #[test]
    fn overlap_is_mutual_and_seen_by_every_common_topic(
        one in some_filter(), other in some_filter(), names in prop::collection::vec(some_topic(), 8)
    ) {
        let (one, other) = (filter(&one), filter(&other));
        prop_assert_eq!(one.overlaps(&other), other.overlaps(&one));
        prop_assert!(one.overlaps(&one));
        for name in names {
            let name = topic(&name);
            prop_assert!(!(one.matches(&name) && other.matches(&name)) || one.overlaps(&other));
        }
    }

    #[test]
    fn filters_that_overlap_have_a_common_topic(one in some_filter(), other in some_filter()) {
        // A level that is a wildcard in both may be any text, such as "a".
        let levels = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        let (ours, theirs) = (levels(&one), levels(&other));
        let length = ours.len().max(theirs.len());
        let level = |at: usize| {
            let fixed = [&ours, &theirs].into_iter().filter_map(|levels| levels.get(at)).find(|l| !matches!(l.as_str(), "+" | "#"));
            fixed.map_or("a", String::as_str)
        };
        let found = (1..=length).any(|count| {
            let text = (0..count).map(level).collect::<Vec<_>>().join("/");
            matches_naively(&one, &text) && matches_naively(&other, &text)
        });
        prop_assert_eq!(filter(&one).overlaps(&filter(&other)), found);
    }

    #[test]
    fn the_filter_of_a_template_matches_all_that_it_makes(text in some_template(), of in some_filter(), name in some_topic()) {
        let name = topic(&name);
        if let Some(captures) = filter(&of).captures(&name)
            && let Ok(made) = template(&text).fill(&captures, &device(), &model())
        {
            let all = template(&text).as_filter(&filter(&of));
            prop_assert_eq!(all.as_str().parse(), Ok(all.clone()));
            prop_assert!(all.matches(&made), "{} does not match {}", all, made);
        }
    }

    #[test]
    fn foreign_texts_never_panic(text: String) {
        if let Ok(own) = text.parse::<TopicFilter>() {
            prop_assert_eq!(own.to_string(), text.clone());
        }
        if let Ok(own) = text.parse::<TopicTemplate>() {
            prop_assert_eq!(own.to_string(), text);
        }
    }
}
