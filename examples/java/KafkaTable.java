import com.fasterxml.jackson.core.*;
import com.fasterxml.jackson.databind.*;
import io.cloudevents.CloudEvent;
import io.cloudevents.kafka.CloudEventDeserializer;
import java.sql.*;
import java.time.Duration;
import java.util.*;
import java.util.regex.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Keeps, in SQLite, a table of what exists in the clusters and a log of what happened, from topics. Several of it, with one
 * group, share the partitions and the database. Arguments: brokers, topics (comma-separated), group, database.
 */
public class KafkaTable {
    // objects has the highest record of each object, marks the highest complete mark, and the view existing is what exists.
    static final String SCHEMA = """
        CREATE TABLE IF NOT EXISTS objects (
          cluster TEXT NOT NULL, pipeline TEXT NOT NULL, subject TEXT NOT NULL, resource TEXT NOT NULL, namespace TEXT NOT NULL,
          uid TEXT NOT NULL, version TEXT NOT NULL, sequence TEXT NOT NULL, deleted BOOLEAN NOT NULL, snapshot_sequence TEXT NOT NULL,
          object TEXT NOT NULL,
          PRIMARY KEY (cluster, pipeline, subject));
        CREATE TABLE IF NOT EXISTS marks (
          cluster TEXT NOT NULL, pipeline TEXT NOT NULL, resource TEXT NOT NULL, namespace TEXT NOT NULL, snapshot_sequence TEXT NOT NULL,
          PRIMARY KEY (cluster, pipeline, resource, namespace));
        CREATE VIEW IF NOT EXISTS existing AS
        SELECT * FROM objects AS o WHERE NOT deleted AND NOT EXISTS (
          SELECT 1 FROM marks AS m
          WHERE m.cluster = o.cluster AND m.pipeline = o.pipeline AND m.resource = o.resource AND m.namespace IN (o.namespace, '')
            AND m.snapshot_sequence > o.sequence AND m.snapshot_sequence > o.snapshot_sequence);
        CREATE TABLE IF NOT EXISTS log (
          n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, cluster TEXT NOT NULL, pipeline TEXT NOT NULL, subject TEXT NOT NULL,
          sequence TEXT NOT NULL, time TEXT NOT NULL, type TEXT NOT NULL, baseline BOOLEAN NOT NULL,
          inferred BOOLEAN NOT NULL, data TEXT NOT NULL,
          UNIQUE (pipeline, id));""";
    // Changes the row of an object if the record is above what is there.
    static final String RECORD = """
        INSERT INTO objects (cluster, pipeline, subject, resource, namespace, uid, version, sequence, deleted, snapshot_sequence, object)
        VALUES (:cluster, :pipeline, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :snapshot_sequence, :object)
        ON CONFLICT (cluster, pipeline, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
          deleted = excluded.deleted, snapshot_sequence = excluded.snapshot_sequence, object = excluded.object
        WHERE (excluded.sequence, excluded.deleted, excluded.snapshot_sequence) > (objects.sequence, objects.deleted, objects.snapshot_sequence)""";
    // Changes the mark of a snapshot if this one is higher.
    static final String MARK = """
        INSERT INTO marks (cluster, pipeline, resource, namespace, snapshot_sequence)
        VALUES (:cluster, :pipeline, :resource, :namespace, :snapshot_sequence)
        ON CONFLICT (cluster, pipeline, resource, namespace) DO UPDATE SET snapshot_sequence = excluded.snapshot_sequence
        WHERE excluded.snapshot_sequence > marks.snapshot_sequence""";
    // Takes each change and each gap once. A record of a snapshot is a baseline: it says what existed, and not what happened.
    static final String NOTE = """
        INSERT INTO log (id, cluster, pipeline, subject, sequence, time, type, baseline, inferred, data)
        VALUES (:id, :cluster, :pipeline, :subject, :sequence, :time, :type, :baseline, :inferred, :object)
        ON CONFLICT (pipeline, id) DO NOTHING""";

    static { // objects may be nested 10,000 levels deep
        StreamReadConstraints.overrideDefaultStreamReadConstraints(StreamReadConstraints.builder().maxNestingDepth(20_000).build());
    }
    static final ObjectMapper JSON = new ObjectMapper();
    static final Set<String> CHANGES = Set.of("ADDED", "MODIFIED", "DELETED"), NOTICES = Set.of("GAP", "SNAPSHOT");
    static final Pattern NAME = Pattern.compile(":(\\w+)");
    static final Pattern NAMESPACE = Pattern.compile("/apis?(?:/[^/]+){1,2}/namespaces/([^/]+)/[^/]+/[^/]+");

    public static void main(String[] args) throws Exception {
        Connection db = DriverManager.getConnection("jdbc:sqlite:" + args[3] + "?journal_mode=WAL&busy_timeout=10000");
        db.createStatement().executeUpdate(SCHEMA);
        db.setAutoCommit(false);
        Map<String, Object> config = Map.of("bootstrap.servers", args[0], "group.id", args[2], "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "session.timeout.ms", "10000"); // after which another member gets the partitions of one that was killed
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new CloudEventDeserializer())) {
            consumer.subscribe(List.of(args[1].split(",")));
            while (true) {
                try {
                    for (ConsumerRecord<String, CloudEvent> record : consumer.poll(Duration.ofSeconds(1))) {
                        if (record.value() != null) { // a tombstone
                            apply(db, read(record.value()));
                        }
                    }
                } catch (RecordDeserializationException e) { // poll has returned what comes before it
                    System.err.println(e);
                    consumer.seek(e.topicPartition(), e.offset() + 1);
                }
                db.commit();
                try {
                    consumer.commitSync(); // once it is stored
                } catch (CommitFailedException | RebalanceInProgressException | RetriableException e) { // another has the partitions, or the broker is away
                    System.err.println(e); // what is not committed comes again
                }
            }
        }
    }

    /** The values of an event for the statements; none if it cannot be read, or is of a later version of kubeferry. */
    static Map<String, Object> read(CloudEvent event) {
        try {
            JsonNode data = JSON.readTree(event.getData().toBytes()), gvr = data.path("resource");
            String type = data.get("type").textValue(), group = gvr.path("group").asText();
            Map<String, Object> row = new HashMap<>(Map.of("id", event.getId(), "subject", event.getSubject(), "type", type,
                    "cluster", event.getSource().toString().substring("/clusters/".length()), "pipeline", text(event, "pipeline"),
                    "sequence", text(event, "sequence"), "snapshot_sequence", text(event, "snapshotsequence"), "deleted", type.equals("DELETED"),
                    "namespace", data.path("namespace").asText(""), "time", event.getTime().toString()));
            row.putAll(Map.of("baseline", data.path("snapshot").asBoolean(), "inferred", data.path("inferred").asBoolean(),
                    "complete", data.path("complete").asBoolean(), "object", (data.has("object") ? data.get("object") : data).toString()));
            if (CHANGES.contains(type)) { // transforms may have removed from the object what the id and the subject have
                Matcher namespaced = NAMESPACE.matcher(event.getSubject());
                String[] id = event.getId().split("/");
                row.putAll(Map.of("namespace", namespaced.matches() ? namespaced.group(1) : "", "uid", id[id.length - 3], "version", id[id.length - 2]));
            }
            if (CHANGES.contains(type) || NOTICES.contains(type)) {
                row.put("resource", (group.isEmpty() ? "" : group + "/") + gvr.get("version").textValue() + "/" + gvr.get("resource").textValue());
                return row;
            }
        } catch (Exception e) {
            System.err.println(event.getId() + ": " + e);
        }
        return Map.of();
    }

    static void apply(Connection db, Map<String, Object> row) throws SQLException {
        Object type = row.getOrDefault("type", "");
        if (type.equals("SNAPSHOT") && row.get("complete").equals(true)) {
            run(db, MARK, row);
        }
        if (CHANGES.contains(type)) {
            run(db, RECORD, row);
        }
        if (CHANGES.contains(type) || type.equals("GAP")) {
            run(db, NOTE, row);
        }
    }

    static String text(CloudEvent event, String extension) {
        Object value = event.getExtension(extension);
        return value == null ? "" : value.toString();
    }

    static void run(Connection db, String sql, Map<String, Object> row) throws SQLException {
        List<Object> values = new ArrayList<>();
        String positional = NAME.matcher(sql).replaceAll(name -> values.add(row.get(name.group(1))) ? "?" : "");
        try (PreparedStatement statement = db.prepareStatement(positional)) {
            for (int i = 0; i < values.size(); i++) {
                statement.setObject(i + 1, values.get(i));
            }
            statement.executeUpdate();
        }
    }
}
