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
 * Keeps, in SQLite, a table of what exists in the clusters and a log of what happened, from a topic. Several of it, with one
 * group, share the partitions and the database. Arguments: brokers, topic, group, database.
 */
public class KafkaTable {
    // objects has the highest record of each object, marks the highest mark of each snapshot, and existing is the table of what exists.
    static final String SCHEMA = """
        CREATE TABLE IF NOT EXISTS objects (
          cluster TEXT, pipeline TEXT, subject TEXT, resource TEXT, namespace TEXT, uid TEXT, version TEXT,
          sequence TEXT, deleted INTEGER, snapshot TEXT, object TEXT,
          PRIMARY KEY (cluster, pipeline, subject));
        CREATE TABLE IF NOT EXISTS marks (
          cluster TEXT, pipeline TEXT, resource TEXT, namespace TEXT, snapshot TEXT,
          PRIMARY KEY (cluster, pipeline, resource, namespace));
        CREATE VIEW IF NOT EXISTS existing AS
        SELECT * FROM objects AS o WHERE NOT deleted AND NOT EXISTS (
          SELECT 1 FROM marks AS m
          WHERE m.cluster = o.cluster AND m.pipeline = o.pipeline AND m.resource = o.resource AND m.namespace IN (o.namespace, '')
            AND m.snapshot > o.sequence AND m.snapshot > o.snapshot);
        CREATE TABLE IF NOT EXISTS log (
          n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, cluster TEXT, pipeline TEXT, subject TEXT, sequence TEXT, type TEXT, data TEXT,
          UNIQUE (pipeline, id));""";
    // Changes the row of an object if the record is above what is there.
    static final String RECORD = """
        INSERT INTO objects (cluster, pipeline, subject, resource, namespace, uid, version, sequence, deleted, snapshot, object)
        VALUES (:cluster, :pipeline, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :snapshot, :object)
        ON CONFLICT (cluster, pipeline, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
          deleted = excluded.deleted, snapshot = excluded.snapshot, object = excluded.object
        WHERE (excluded.sequence, excluded.deleted, excluded.snapshot) > (objects.sequence, objects.deleted, objects.snapshot)""";
    // Changes the mark of a snapshot if this one is higher.
    static final String MARK = """
        INSERT INTO marks (cluster, pipeline, resource, namespace, snapshot) VALUES (:cluster, :pipeline, :resource, :namespace, :snapshot)
        ON CONFLICT (cluster, pipeline, resource, namespace) DO UPDATE SET snapshot = excluded.snapshot WHERE excluded.snapshot > marks.snapshot""";
    // Takes each change and each gap once.
    static final String NOTE = """
        INSERT INTO log (id, cluster, pipeline, subject, sequence, type, data) VALUES (:id, :cluster, :pipeline, :subject, :sequence, :type, :object)
        ON CONFLICT DO NOTHING""";

    static { // objects may be nested 10,000 levels deep
        StreamReadConstraints.overrideDefaultStreamReadConstraints(StreamReadConstraints.builder().maxNestingDepth(20_000).build());
    }
    static final ObjectMapper JSON = new ObjectMapper();
    static final List<String> TYPES = List.of("ADDED", "MODIFIED", "DELETED", "GAP", "SNAPSHOT");
    static final Pattern NAME = Pattern.compile(":(\\w+)");
    static final Pattern NAMESPACE = Pattern.compile("/apis?(?:/[^/]+){1,2}/namespaces/([^/]+)/[^/]+/[^/]+");

    public static void main(String[] args) throws Exception {
        Connection db = DriverManager.getConnection("jdbc:sqlite:" + args[3] + "?journal_mode=WAL&busy_timeout=10000");
        db.createStatement().executeUpdate(SCHEMA);
        db.setAutoCommit(false);
        Map<String, Object> config = Map.of("bootstrap.servers", args[0], "group.id", args[2], "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "session.timeout.ms", "10000"); // after which another member gets the partitions of one that was killed
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new CloudEventDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (true) {
                try {
                    for (ConsumerRecord<String, CloudEvent> record : consumer.poll(Duration.ofSeconds(1))) {
                        if (record.value() != null) { // a tombstone
                            apply(db, record.value());
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

    static void apply(Connection db, CloudEvent event) throws Exception {
        JsonNode data = JSON.readTree(event.getData().toBytes());
        String type = data.path("type").asText();
        if (!TYPES.contains(type)) {
            return; // of a later version
        }
        JsonNode gvr = data.get("resource");
        String group = gvr.get("group").asText();
        Map<String, Object> row = new HashMap<>(Map.of("id", event.getId(), "subject", event.getSubject(), "type", type,
                "cluster", event.getSource().toString().substring("/clusters/".length()), "pipeline", text(event, "pipeline"),
                "sequence", text(event, "sequence"), "snapshot", text(event, "snapshotsequence"), "deleted", type.equals("DELETED"),
                "namespace", data.path("namespace").asText("")));
        row.put("resource", (group.isEmpty() ? "" : group + "/") + gvr.get("version").asText() + "/" + gvr.get("resource").asText());
        row.put("object", (data.has("object") ? data.get("object") : data).toString());
        if (type.equals("SNAPSHOT")) {
            if (data.get("complete").asBoolean()) {
                run(db, MARK, row);
            }
            return;
        }
        if (!type.equals("GAP")) { // transforms may have removed from the object what the id and the subject have
            Matcher namespaced = NAMESPACE.matcher(event.getSubject());
            String[] id = event.getId().split("/");
            row.putAll(Map.of("namespace", namespaced.matches() ? namespaced.group(1) : "", "uid", id[id.length - 3], "version", id[id.length - 2]));
            run(db, RECORD, row);
        }
        run(db, NOTE, row);
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
