//! The assignment of subscriptions to sessions with the broker. Pure.
//!
//! A broker may deliver a message once for each subscription that it matches (MQTT 5.0, section 3.3.4), and a binding
//! must get it once. With MQTT 5 each delivery names its subscription by an identifier. Without identifiers,
//! overlapping filters are in separate sessions, each with a client id, as few as needed.
//!
//! Bindings that only push rows do not wait for a model, so they have separate sessions, too. Acknowledgements go out
//! in order, and one call that waits for its model would delay all rows after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::bindings::Bindings;
use super::client::packet::{ConnAck, MqttVersion, Qos, ReceivedMessage, RetainHandling, Subscription, SubscriptionId};
use super::topics::{DeviceTopics, TOPIC_ROOT, TopicFilter};

/// The steps of the search for a distribution to a number of sessions, after which one more session is allowed.
const SEARCH_STEPS_MAX: usize = 1000;

/// The number of values of a subscription identifier (section 3.8.2.1.2).
const SUBSCRIPTION_IDS: u32 = 268_435_455;

/// The rules that depend on the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionPlanRules {
    /// All sessions speak the same.
    pub version: MqttVersion,
    /// The broker names the subscriptions of a delivery.
    pub has_ids: bool,
    /// Bindings that only push rows have separate sessions.
    pub splits_rows: bool,
}

impl SubscriptionPlanRules {
    /// The rules for a broker that has accepted a connection.
    pub fn of(version: MqttVersion, broker: &ConnAck, splits_rows: bool) -> Self {
        Self { version, has_ids: broker.subscription_ids, splits_rows }
    }
}

/// A session of this box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionName {
    /// Calls, presence and everything that other parts publish. The others have only bindings.
    Main,
    /// Bindings that overlap with those of the main session; from 2 on.
    Other(usize),
    /// Bindings that only push rows; from 1 on.
    Rows(usize),
}

impl SessionName {
    pub fn is_rows(self) -> bool {
        matches!(self, Self::Rows(_))
    }

    /// Its client id, if the main session of the box has `main`.
    pub fn client_id(self, main: &str) -> String {
        match self {
            Self::Main => main.to_owned(),
            Self::Other(number) => format!("{main}-{number}"),
            Self::Rows(1) => format!("{main}-rows"),
            Self::Rows(number) => format!("{main}-rows-{number}"),
        }
    }
}

/// A subscription and the parts of this box that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSubscription {
    pub subscription: Subscription,
    pub session: SessionName,
    /// The bindings that take its messages, by their place in the configuration.
    pub bindings: BTreeSet<usize>,
}

/// All subscriptions of this box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionPlan {
    subscriptions: Vec<PlannedSubscription>,
    /// Filters that an earlier configuration may have left in any session.
    former: BTreeSet<TopicFilter>,
    pub rules: SubscriptionPlanRules,
}

/// Two bindings that need separate sessions, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Separation {
    /// The binding of the session.
    pub binding: String,
    /// The other one, or other part of this box.
    pub other: String,
    /// They overlap; otherwise only the one of the session waits for no model.
    pub overlaps: bool,
}

impl SubscriptionPlan {
    /// The subscriptions that this box needs; `heard` are those of other parts.
    pub fn new(
        topics: &DeviceTopics,
        bindings: &Bindings,
        heard: &[TopicFilter],
        rules: SubscriptionPlanRules,
    ) -> Self {
        let mut subscriptions: Vec<PlannedSubscription> = Vec::new();
        let mut add = |filter: TopicFilter, qos: Qos, retain_handling, session, binding: Option<usize>| {
            let has = |planned: &&mut PlannedSubscription| {
                planned.subscription.filter == filter && planned.session == session
            };
            if let Some(planned) = subscriptions.iter_mut().find(has) {
                planned.subscription.qos = qos.max(planned.subscription.qos);
                planned.bindings.extend(binding);
                return;
            }
            // The box must not receive its own messages; the standard forbids this option for a shared subscription.
            let no_local = !filter.is_shared();
            let subscription = Subscription { no_local, filter, qos, retain_handling, id: None };
            let bindings = binding.into_iter().collect();
            subscriptions.push(PlannedSubscription { subscription, session, bindings });
        };
        for filter in [Some(topics.infer()), topics.group_infer()].into_iter().flatten() {
            add(filter, Qos::AtLeastOnce, RetainHandling::Never, SessionName::Main, None);
        }
        // The retained hint reaches a box that was away for hours.
        let of_parts = topics.desired().into_iter().chain(heard.iter().cloned());
        for filter in of_parts {
            add(filter, Qos::AtLeastOnce, RetainHandling::IfNew, SessionName::Main, None);
        }
        for (index, binding) in bindings.iter().enumerate() {
            let is_apart = rules.splits_rows && binding.only_pushes();
            let session = if is_apart { SessionName::Rows(1) } else { SessionName::Main };
            let filter = binding.subscription(topics.group.as_ref());
            add(filter, binding.config().qos, RetainHandling::IfNew, session, Some(index));
        }

        let mut plan = Self { subscriptions, former: BTreeSet::new(), rules };
        if rules.has_ids {
            plan.identify();
        } else {
            plan.separate();
        }
        plan
    }

    /// The same where an earlier configuration had these filters: every session ends those that it does not have.
    #[must_use]
    pub fn without(self, former: impl Iterator<Item = TopicFilter>) -> Self {
        Self { former: former.collect(), ..self }
    }

    /// Gives subscriptions identifiers that follow from their filters: a filter that an earlier configuration left in
    /// the session has another. The topics of Ledge overlap with no others and need none.
    fn identify(&mut self) {
        let mut used: BTreeMap<u32, TopicFilter> = BTreeMap::new();
        for planned in &mut self.subscriptions {
            let filter = &planned.subscription.filter;
            if filter.unshared().as_str().starts_with(TOPIC_ROOT) {
                continue;
            }
            let digest = blake3::hash(filter.as_str().as_bytes());
            let seed = digest.as_bytes().first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            let mut id = 1 + seed % SUBSCRIPTION_IDS;
            // The same filter in two sessions has the same identifier.
            while used.get(&id).is_some_and(|other| other != filter) {
                id = 1 + id % SUBSCRIPTION_IDS;
            }
            used.insert(id, filter.clone());
            planned.subscription.id = SubscriptionId::new(id);
        }
    }

    /// Distributes the subscriptions to sessions in which no two overlap.
    fn separate(&mut self) {
        for rows in [false, true] {
            let is_of_group = |planned: &PlannedSubscription| planned.session.is_rows() == rows;
            let group: Vec<usize> = (0..self.subscriptions.len())
                .filter(|index| self.subscriptions.get(*index).is_some_and(is_of_group))
                .collect();
            let members: Vec<_> = group.iter().filter_map(|index| self.subscriptions.get(*index)).collect();
            let overlap = |one: usize, other: usize| match (members.get(one), members.get(other)) {
                (Some(one), Some(other)) => one.subscription.filter.overlaps(&other.subscription.filter),
                _ => false,
            };
            // The topics of calls and of other parts are in the main session.
            let fixed: Vec<bool> = members.iter().map(|planned| !rows && planned.bindings.is_empty()).collect();
            let numbers = distribute(&fixed, overlap);
            for (index, number) in group.into_iter().zip(numbers) {
                let Some(planned) = self.subscriptions.get_mut(index) else { continue };
                planned.session = match (rows, number) {
                    (true, number) => SessionName::Rows(number + 1),
                    (false, 0) => SessionName::Main,
                    (false, number) => SessionName::Other(number + 1),
                };
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &PlannedSubscription> {
        self.subscriptions.iter()
    }

    /// The subscriptions of a session.
    pub fn of(&self, session: SessionName) -> impl Iterator<Item = &Subscription> {
        let own = self.subscriptions.iter().filter(move |planned| planned.session == session);
        own.map(|planned| &planned.subscription)
    }

    /// The filters that only other sessions have, or none any more: an earlier plan may have left them in this one.
    pub fn of_others(&self, session: SessionName) -> Vec<TopicFilter> {
        let own: BTreeSet<_> = self.of(session).map(|subscription| &subscription.filter).collect();
        let planned = self.subscriptions.iter().map(|planned| &planned.subscription.filter);
        let all: BTreeSet<_> = planned.chain(&self.former).collect();
        all.difference(&own).map(|filter| (*filter).clone()).collect()
    }

    /// The sessions besides the main one.
    pub fn others(&self) -> BTreeSet<SessionName> {
        self.subscriptions.iter().map(|planned| planned.session).filter(|name| *name != SessionName::Main).collect()
    }

    /// The subscriptions by which a message came to a session.
    ///
    /// A message that names no subscription came by one without an identifier. If it matches no subscription of this
    /// session, an earlier plan had its subscription here, and no other session got the message: it is for a binding of
    /// the same kind, if there is one.
    pub fn takers(&self, session: SessionName, received: &ReceivedMessage) -> Vec<&PlannedSubscription> {
        let topic = &received.message.topic;
        let matching = || self.subscriptions.iter().filter(|planned| planned.subscription.filter.matches(topic));
        if !received.subscription_ids.is_empty() {
            let is_named = |planned: &&PlannedSubscription| {
                planned.subscription.id.is_some_and(|id| received.subscription_ids.contains(&id))
            };
            let mut named: Vec<_> = matching().filter(is_named).collect();
            if named.iter().any(|planned| planned.session == session) {
                named.retain(|planned| planned.session == session);
            }
            return named;
        }
        let own = matching().filter(|planned| planned.session == session).collect::<Vec<_>>();
        let of_kind =
            || matching().filter(|planned| planned.session.is_rows() == session.is_rows()).collect::<Vec<_>>();
        let taking = if own.is_empty() { of_kind() } else { own };
        if taking.is_empty() { matching().collect() } else { taking }
    }

    /// The bindings of a session, each with another one for which it has that session.
    pub fn separations(&self, session: SessionName, bindings: &Bindings) -> Vec<Separation> {
        let all: Vec<_> = bindings.iter().collect();
        let name = |planned: &PlannedSubscription| {
            let binding = planned.bindings.first().and_then(|index| all.get(*index));
            binding.map_or_else(|| planned.subscription.filter.to_string(), |binding| binding.name().to_owned())
        };
        let is_of_kind = |planned: &PlannedSubscription| planned.session.is_rows() == session.is_rows();
        let before = |planned: &&PlannedSubscription| {
            planned.session < session && (session == SessionName::Rows(1) || is_of_kind(planned))
        };
        let of = |planned: &PlannedSubscription| {
            let overlapping = |other: &&PlannedSubscription| {
                is_of_kind(other) && other.subscription.filter.overlaps(&planned.subscription.filter)
            };
            let other = self.subscriptions.iter().filter(before).rfind(overlapping);
            let any = || self.subscriptions.iter().find(before);
            let (other, overlaps) = match other {
                Some(other) => (other, true),
                None => (any()?, false),
            };
            Some(Separation { binding: name(planned), other: name(other), overlaps })
        };
        self.subscriptions.iter().filter(|planned| planned.session == session).filter_map(of).collect()
    }
}

impl fmt::Display for Separation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { binding, other, overlaps } = self;
        if *overlaps {
            write!(f, "the bindings {binding:?} and {other:?} take some of the same topics")
        } else {
            write!(f, "the binding {binding:?} only pushes rows, and {other:?} waits for models")
        }
    }
}

/// Gives each of these a number so that no two that overlap have the same: the fixed ones 0, the others the lowest
/// numbers that the search finds.
fn distribute(fixed: &[bool], overlap: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let count = fixed.len();
    let of = |one: usize| (0..count).filter(|other| one != *other && overlap(one, *other)).collect::<Vec<_>>();
    let neighbours: Vec<Vec<usize>> = (0..count).map(of).collect();
    let start: Vec<Option<usize>> = fixed.iter().map(|fixed| fixed.then_some(0)).collect();
    for most in largest_clique(&neighbours)..=count {
        let (mut numbers, mut steps) = (start.clone(), SEARCH_STEPS_MAX);
        if search(&neighbours, &mut numbers, most, &mut steps) {
            return numbers.into_iter().map(Option::unwrap_or_default).collect();
        }
    }
    // Reached only where the search gave up on each number of sessions.
    (0..count).collect()
}

/// The size of a group in which all overlap, as large as is quickly found: the least number of sessions.
fn largest_clique(neighbours: &[Vec<usize>]) -> usize {
    let from = |first: usize| {
        let mut clique = vec![first];
        for next in neighbours.get(first).into_iter().flatten() {
            if clique.iter().all(|member| neighbours.get(*member).is_some_and(|of| of.contains(next))) {
                clique.push(*next);
            }
        }
        clique.len()
    };
    (0..neighbours.len()).map(from).max().unwrap_or(1)
}

/// Numbers the rest below `most`: the most constrained first (DSATUR), with backtracking.
fn search(neighbours: &[Vec<usize>], numbers: &mut [Option<usize>], most: usize, steps: &mut usize) -> bool {
    let taken = |numbers: &[Option<usize>], index: usize| -> BTreeSet<usize> {
        let of = neighbours.get(index).into_iter().flatten();
        of.filter_map(|other| numbers.get(*other).copied().flatten()).collect()
    };
    let open = (0..numbers.len()).filter(|index| numbers.get(*index).is_some_and(Option::is_none));
    let next = open.map(|index| (taken(numbers, index), index));
    let Some((taken, index)) = next.max_by_key(|(taken, index)| (taken.len(), std::cmp::Reverse(*index))) else {
        return true;
    };
    let Some(left) = steps.checked_sub(1) else { return false };
    *steps = left;
    // All unused numbers are alike.
    let unused = numbers.iter().flatten().max().map_or(0, |highest| highest + 1);
    for number in (0..most.min(unused + 1)).filter(|number| !taken.contains(number)) {
        if let Some(place) = numbers.get_mut(index) {
            *place = Some(number);
        }
        if search(neighbours, numbers, most, steps) {
            return true;
        }
    }
    if let Some(place) = numbers.get_mut(index) {
        *place = None;
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bindings::BindingConfig;
    use crate::client::packet::{MessageProperties, MqttMessage};

    fn rules(has_ids: bool, splits_rows: bool) -> SubscriptionPlanRules {
        SubscriptionPlanRules { version: MqttVersion::V5, has_ids, splits_rows }
    }

    fn topics() -> DeviceTopics {
        DeviceTopics { device: "box".parse().unwrap(), group: "shop".parse().ok(), has_platform: false }
    }

    /// Bindings with these filters. One that begins with `m:` asks a model, all others only push; `s:` is shared.
    fn bindings(filters: &[&str]) -> Bindings {
        let binding = |(index, filter): (usize, &&str)| -> BindingConfig {
            let (kind, topic) = filter.split_once(':').filter(|(kind, _)| kind.len() == 1).unwrap_or(("", filter));
            let more = if kind == "m" { r#""model": "m", "publish": "out""# } else { r#""feature_view": "v""# };
            let shared = kind == "s";
            let text = format!(r#"{{"name": "b{index}", "topic": "{topic}", "shared": {shared}, {more}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        Bindings::new(&filters.iter().enumerate().map(binding).collect::<Vec<_>>())
    }

    fn plan(filters: &[&str], rules: SubscriptionPlanRules) -> SubscriptionPlan {
        SubscriptionPlan::new(&topics(), &bindings(filters), &[], rules)
    }

    /// The session of each binding.
    fn sessions(plan: &SubscriptionPlan, count: usize) -> Vec<String> {
        let of = |index: usize| plan.iter().find(|planned| planned.bindings.contains(&index)).unwrap().session;
        (0..count).map(|index| of(index).client_id("box")).collect()
    }

    fn delivered(topic: &str, subscription_ids: Vec<SubscriptionId>) -> ReceivedMessage {
        let properties = MessageProperties::default();
        let topic = topic.parse().unwrap();
        let message = MqttMessage { topic, payload: "1".into(), qos: Qos::AtLeastOnce, retain: false, properties };
        ReceivedMessage { message, packet_id: None, duplicate: false, oversized: None, subscription_ids }
    }

    fn taken(plan: &SubscriptionPlan, session: SessionName, topic: &str, ids: Vec<SubscriptionId>) -> Vec<usize> {
        let received = delivered(topic, ids);
        plan.takers(session, &received).iter().flat_map(|planned| planned.bindings.iter().copied()).collect()
    }

    #[test]
    fn with_identifiers_calls_have_one_session_and_rows_another() {
        let all = ["tele/+/+", "+/status/switch:0", "m:tele/+/SENSOR", "m:tele/#", "s:tele/+/+"];
        let plan = plan(&all, rules(true, true));
        assert_eq!(sessions(&plan, 5), ["box-rows", "box-rows", "box", "box", "box-rows"]);
        let ids: BTreeSet<_> = plan.iter().filter_map(|planned| planned.subscription.id).collect();
        assert_eq!((ids.len(), plan.iter().count()), (5, 7), "each of a binding has its own");
    }

    #[test]
    fn without_identifiers_overlapping_filters_are_apart_in_as_few_sessions_as_possible() {
        let of = |filters: &[&str]| sessions(&plan(filters, rules(false, true)), filters.len());
        assert_eq!(of(&["tele/+/+", "+/status/switch:0"]), ["box-rows", "box-rows-2"]);
        assert_eq!(of(&["zigbee2mqtt/#", "+/events/rpc"]), ["box-rows", "box-rows-2"]);
        assert_eq!(of(&["m:tele/+/+", "m:+/status/switch:0", "other/+"]), ["box", "box-2", "box-rows"]);
        // The first and the last do not overlap.
        assert_eq!(of(&["a/#", "+/b", "c/#"]).iter().collect::<BTreeSet<_>>().len(), 2);
        assert_eq!(of(&["a", "b", "c/+"]), ["box-rows"; 3]);
        // The same filter, shared and not; and for a model.
        assert_eq!(of(&["a", "s:a", "m:a", "a"]), ["box-rows", "box-rows-2", "box", "box-rows"]);
        let shared = plan(&["m:a/+", "b/c"], rules(false, false));
        assert_eq!(sessions(&shared, 2), ["box", "box"], "rows share the session where they must");
    }

    #[test]
    fn no_binding_takes_the_session_of_what_a_part_hears_on_the_same_topics() {
        let heard = ["homeassistant/status".parse().unwrap()];
        let of = |filter: &str| {
            let plan = SubscriptionPlan::new(&topics(), &bindings(&[filter]), &heard, rules(false, true));
            sessions(&plan, 1).remove(0)
        };
        assert_eq!((of("m:homeassistant/#"), of("m:homeassistant/status")), ("box-2".into(), "box".into()));
    }

    #[test]
    fn a_filter_keeps_its_identifier_beside_others() {
        let id = |filters: &[&str]| {
            let plan = plan(filters, rules(true, true));
            plan.iter().find(|planned| planned.subscription.filter.as_str() == "a/+").unwrap().subscription.id
        };
        assert!(id(&["a/+"]).is_some());
        assert_eq!(id(&["a/+"]), id(&["b", "m:c/#", "a/+"]));
    }

    #[test]
    fn a_delivery_is_for_what_it_names_and_without_a_name_for_its_session() {
        let filters = ["tele/+/+", "+/status/switch:0", "m:tele/+/+"];
        let with = plan(&filters, rules(true, true));
        let id = |index: usize| {
            with.iter().find(|planned| planned.bindings.contains(&index)).unwrap().subscription.id.unwrap()
        };
        let (topic, main, rows) = ("tele/status/switch:0", SessionName::Main, SessionName::Rows(1));
        assert_eq!(taken(&with, rows, topic, vec![id(0)]), [0]);
        assert_eq!(taken(&with, rows, topic, vec![id(1)]), [1]);
        assert_eq!(taken(&with, rows, topic, vec![id(0), id(1)]), [0, 1]);
        // The same filter has the same identifier, and another binding in each session.
        assert_eq!((id(0), taken(&with, main, topic, vec![id(2)])), (id(2), vec![2]));
        // It names a filter that its topic does not match, as no broker does.
        assert_eq!(taken(&with, rows, "tele/kitchen/STATE", vec![id(1)]), [0; 0]);

        let without = plan(&filters, rules(false, true));
        assert_eq!(taken(&without, SessionName::Rows(1), topic, vec![]), [0]);
        assert_eq!(taken(&without, SessionName::Rows(2), topic, vec![]), [1]);
        assert_eq!(taken(&without, main, topic, vec![]), [2]);
        // Kept by the broker since an earlier plan, in which this session had the filter.
        assert_eq!(taken(&without, SessionName::Rows(2), "tele/kitchen/STATE", vec![]), [0]);
        assert_eq!(taken(&without, main, "a/status/switch:0", vec![]), [1]);
    }

    #[test]
    fn a_session_ends_the_filters_of_others_and_of_an_earlier_configuration() {
        let former = ["tele/#", "tele/+/+"].map(|filter| filter.parse().unwrap());
        let plan = plan(&["tele/+/+", "+/status/switch:0"], rules(false, true)).without(former.into_iter());
        let ended = |name| plan.of_others(name).iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let calls = ["ledge/v1/box/infer/#", "$share/shop/ledge/v1/shop/infer/#"];
        let and_calls = |filters: &[&str]| filters.iter().chain(&calls).map(|filter| (*filter).to_owned()).collect();
        assert_eq!(ended(SessionName::Rows(1)), and_calls(&["tele/#", "+/status/switch:0"]));
        assert_eq!(ended(SessionName::Rows(2)), and_calls(&["tele/#", "tele/+/+"]));
        assert_eq!(ended(SessionName::Main), ["tele/#", "tele/+/+", "+/status/switch:0"].map(str::to_owned).into());
    }

    #[test]
    fn a_session_names_the_two_bindings_that_need_it() {
        let filters = ["tele/+/+", "+/status/switch:0", "m:x/#", "m:x/+"];
        let (without, bindings) = (plan(&filters, rules(false, true)), bindings(&filters));
        let told = |name| without.separations(name, &bindings).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told(SessionName::Rows(2)), [r#"the bindings "b1" and "b0" take some of the same topics"#]);
        assert_eq!(told(SessionName::Other(2)), [r#"the bindings "b3" and "b2" take some of the same topics"#]);
        assert!(told(SessionName::Rows(1))[0].starts_with(r#"the binding "b0" only pushes rows"#));
    }

    fn some_filter() -> impl Strategy<Value = String> {
        let level = prop::sample::select(&["a", "b", "+"][..]);
        (prop::collection::vec(level, 1..4), any::<bool>()).prop_map(|(levels, all)| {
            let filter = levels.join("/");
            if all { filter + "/#" } else { filter }
        })
    }

    /// The least number of sessions, by trying all distributions.
    fn least(filters: &[TopicFilter]) -> usize {
        fn fits(filters: &[TopicFilter], most: usize, sessions: &mut Vec<usize>) -> bool {
            let index = sessions.len();
            index == filters.len()
                || (0..most).any(|session| {
                    let free = sessions
                        .iter()
                        .enumerate()
                        .all(|(other, of)| *of != session || !filters[other].overlaps(&filters[index]));
                    sessions.push(session);
                    let found = free && fits(filters, most, sessions);
                    sessions.pop();
                    found
                })
        }
        (0..=filters.len()).find(|most| fits(filters, *most, &mut Vec::new())).unwrap()
    }

    proptest! {
        #[test]
        fn each_message_comes_once_to_each_binding(filters in prop::collection::btree_set(some_filter(), 1..8), topic in "[ab](/[ab]){0,3}") {
            let filters: Vec<String> = filters.into_iter().collect();
            let texts: Vec<&str> = filters.iter().map(String::as_str).collect();
            let parsed: Vec<TopicFilter> = filters.iter().map(|filter| filter.parse().unwrap()).collect();
            let plan = plan(&texts, rules(false, true));
            prop_assert_eq!(plan.others().len(), least(&parsed));

            // A broker delivers a copy for each subscription that matches.
            let name = topic.parse().unwrap();
            let mut counts = vec![0; filters.len()];
            for planned in plan.iter().filter(|planned| planned.subscription.filter.matches(&name)) {
                for index in taken(&plan, planned.session, &topic, vec![]) {
                    counts[index] += 1;
                }
            }
            let expected: Vec<_> = parsed.iter().map(|filter| usize::from(filter.matches(&name))).collect();
            prop_assert_eq!(counts, expected);
        }
    }
}
