//! Callers who read and push: the feature views that they may use, and the audit record of the rows that they used.

use std::collections::BTreeMap;
use std::sync::Arc;

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_identity::access::ViewScope;
use ledge_service::audit_event::AuditSink;
use ledge_service::audit_event::feature::{FeatureAction, FeatureKey};
use ledge_service::audit_event::tag::{Tag, TagKey};

use super::online::FeatureError;
use super::value::Value;
use super::view::FeatureView;

/// A caller who reads or pushes, and the feature views that they may use.
#[derive(Debug, Clone)]
pub struct FeatureCaller {
    /// The name in records and messages.
    pub principal: Principal,
    /// The feature views that they may read and push.
    pub views: ViewScope,
    /// The model that reads for them; `None` where they receive the values themselves.
    pub model: Option<ModelName>,
    /// The memory that their reads are counted on.
    pub account: MemoryAccount,
}

/// Rows of a view that were read or are to be written, for the audit log.
#[derive(Debug)]
pub struct TouchedRows {
    view: Arc<str>,
    rows: u64,
    tags: Vec<Tag>,
}

impl TouchedRows {
    /// The rows of these entities.
    pub fn new<'e>(key: Option<&TagKey>, view: &FeatureView, entities: impl Iterator<Item = &'e [Value]>) -> Self {
        let mut rows = 0;
        let mut tags = Vec::new();
        for entity in entities {
            rows += 1;
            tags.extend(key.map(|key| tag(key, view, entity)));
        }
        Self { view: view.name.clone(), rows, tags }
    }
}

fn tag(key: &TagKey, view: &FeatureView, entity: &[Value]) -> Tag {
    let join_keys = view.join_keys.iter().zip(entity);
    let join_keys: BTreeMap<_, _> = join_keys.map(|(key, value)| (&*key.name, value.to_json())).collect();
    key.of_entity(&join_keys)
}

impl FeatureCaller {
    /// A caller who may read and push everything, such as a binding, because its file names its views. The sender of a
    /// push counts its memory.
    pub fn unlimited(principal: Principal) -> Self {
        Self { principal, views: ViewScope::ALL, model: None, account: MemoryAccount::unlimited() }
    }

    /// Refuses feature views that this caller may not use, and records the attempt.
    pub(super) fn admit<'v>(
        &self,
        mut views: impl Iterator<Item = &'v Arc<FeatureView>>,
        audit: &AuditSink,
    ) -> Result<(), FeatureError> {
        let Some(view) = views.find(|view| !self.views.has(&view.name)) else { return Ok(()) };
        audit.record_denied(&self.principal, "feature_view_scope");
        Err(FeatureError::OutOfScope { view: view.name.to_string(), principal: self.principal.to_string() })
    }

    /// Records the rows that were read or pushed in `calls` calls.
    pub(super) fn record(&self, action: FeatureAction, calls: u64, touched: &[TouchedRows], audit: &AuditSink) {
        for TouchedRows { view, rows, tags } in touched {
            let key =
                FeatureKey { action, view: view.clone(), model: self.model.clone(), principal: self.principal.clone() };
            audit.record_features(key, calls, *rows, tags);
        }
    }
}

/// A push that is being written. It is recorded on drop, so also when the caller hung up meanwhile.
pub struct PushRecord<'a> {
    caller: FeatureCaller,
    touched: Vec<TouchedRows>,
    audit: &'a AuditSink,
}

impl<'a> PushRecord<'a> {
    /// Creates the record for a push that the writer accepted.
    pub fn new(caller: FeatureCaller, touched: Vec<TouchedRows>, audit: &'a AuditSink) -> Self {
        Self { caller, touched, audit }
    }

    /// Drops the record: no row was written.
    pub fn failed(mut self) {
        self.touched.clear();
    }
}

impl Drop for PushRecord<'_> {
    fn drop(&mut self) {
        self.caller.record(FeatureAction::Push, 1, &self.touched, self.audit);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::super::FeatureStore;
    use super::super::config::FeaturesConfig;
    use super::super::online::{FeaturePush, PushTarget};
    use super::super::registry::Registry;
    use super::*;
    use ledge_identity::sealing::Sealer;

    const VIEW: &str = "[[entity]]\nname = \"customer\"\njoin_key = \"customer_id\"\nvalue_type = \"Int64\"\n\
                        [[feature_view]]\nname = \"spend\"\nentities = [\"customer\"]\nsource = { name = \"p\" }\n\
                        schema = [{ name = \"total\", dtype = \"Float64\" }]\n";

    #[tokio::test]
    async fn a_push_is_recorded_though_its_caller_hung_up_and_not_when_nothing_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let config = FeaturesConfig { path: folder.path().join("features"), ..FeaturesConfig::default() };
        let (audit, mut queue) = AuditSink::channel();
        let store = FeatureStore::open(&config, Registry::parse(VIEW).unwrap(), audit, Sealer::none());
        store.opened().await;
        let push = |id: i64| {
            let columns = vec![("customer_id".to_owned(), vec![json!(id)]), ("total".to_owned(), vec![json!(1.5)])];
            let push = FeaturePush { target: PushTarget::View("spend".to_owned()), columns };
            store.push(push, FeatureCaller::unlimited(Principal::User(7)))
        };
        let mut rows = || queue.take_features().into_values().map(|counts| counts.rows).sum::<u64>();
        // The writer has the push, and the caller hung up before the reply.
        drop(push(1).now_or_never());
        assert_eq!(rows(), 1);
        push(2).await.unwrap();
        assert_eq!(rows(), 1);
        store.close();
        push(3).await.unwrap_err();
        assert_eq!(rows(), 0);
        let touched = vec![TouchedRows { view: "spend".into(), rows: 1, tags: Vec::new() }];
        PushRecord::new(FeatureCaller::unlimited(Principal::User(7)), touched, &store.inner.audit).failed();
        assert_eq!(rows(), 0);
    }
}
