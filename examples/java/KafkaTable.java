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
    // A deleted object keeps its row, so that a late repetition does not bring it back. stream and position are where its last
    // record stood: partition and offset. Each change is in the log once. positions has how far each stream is stored.
    static final String SCHEMA = """
        CREATE TABLE IF NOT EXISTS objects (
          cluster TEXT, subject TEXT, resource TEXT, namespace TEXT, uid TEXT, version TEXT,
          sequence TEXT, deleted INTEGER, object TEXT, stream INTEGER, position INTEGER,
          PRIMARY KEY (cluster, subject));
        CREATE TABLE IF NOT EXISTS log (
          n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, cluster TEXT, subject TEXT, sequence TEXT, type TEXT, data TEXT, UNIQUE (id, sequence));
        CREATE TABLE IF NOT EXISTS snapshots (
          stream INTEGER, cluster TEXT, resource TEXT, namespace TEXT, name TEXT, position INTEGER, done INTEGER,
          PRIMARY KEY (stream, cluster, resource, namespace));
        CREATE TABLE IF NOT EXISTS marks (stream INTEGER, id TEXT, PRIMARY KEY (stream, id));
        CREATE TABLE IF NOT EXISTS positions (stream INTEGER PRIMARY KEY, position INTEGER, time TEXT);
        CREATE TRIGGER IF NOT EXISTS another BEFORE UPDATE ON positions WHEN NEW.position <= OLD.position
        BEGIN SELECT RAISE(ABORT, 'the stream was made again, or is another one: begin with an empty database'); END;""";
    // Changes no row for what is stored already: a snapshot may have removed since what would come back.
    static final String ADVANCE = """
        INSERT INTO positions (stream, position, time) VALUES (:stream, :position, :time)
        ON CONFLICT (stream) DO UPDATE SET position = excluded.position,
          time = CASE WHEN excluded.time > positions.time THEN excluded.time ELSE positions.time END
        WHERE excluded.position > positions.position OR excluded.time > positions.time""";
    // Changes the row of an object only if the record is newer than what is there.
    static final String UPSERT = """
        INSERT INTO objects (cluster, subject, resource, namespace, uid, version, sequence, deleted, object, stream, position)
        VALUES (:cluster, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :object, :stream, :position)
        ON CONFLICT (cluster, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
          deleted = excluded.deleted, object = excluded.object, stream = excluded.stream, position = excluded.position
        WHERE excluded.sequence > objects.sequence OR excluded.sequence = ''
          OR excluded.sequence = objects.sequence AND excluded.deleted > objects.deleted""";
    // The object exists nevertheless, which counts between the marks of a snapshot.
    static final String SEEN = "UPDATE objects SET stream = :stream, position = :position WHERE cluster = :cluster AND subject = :subject";
    // Before UPSERT: what is inferred or of a snapshot is no change if the state is known, and one under a known id if the state is back.
    static final String LOG = """
        INSERT OR IGNORE INTO log (id, cluster, subject, sequence, type, data)
        SELECT :id, :cluster, :subject, :sequence, :type, :object WHERE coalesce((SELECT CASE
          WHEN deleted = :deleted AND (deleted OR uid = :uid AND version = :version)
            OR sequence > :sequence OR sequence = :sequence AND deleted > :deleted AND sequence <> '' THEN 0
          WHEN uid = :uid AND (:deleted OR version = :version) THEN 1 END
          FROM objects WHERE :derived AND cluster = :cluster AND subject = :subject), NOT EXISTS (SELECT 1 FROM log WHERE id = :id))""";
    // ONCE changes no row for a mark that is repeated, BEGIN none for one that was a dead letter: a later snapshot may have begun.
    static final String ONCE = "INSERT OR IGNORE INTO marks VALUES (:stream, :id)";
    static final String BEGIN = "INSERT OR REPLACE INTO snapshots SELECT :stream, :cluster, :resource, :namespace, :snapshot, :position, 0 WHERE NOT :replayed";
    static final String END =
        "UPDATE snapshots SET done = 1 WHERE (stream, cluster, resource, namespace, name) = (:stream, :cluster, :resource, :namespace, :snapshot)";
    // Removes what a complete snapshot has not shown.
    static final String SWEEP = """
        DELETE FROM objects WHERE stream = :stream AND cluster = :cluster AND resource = :resource
          AND (namespace = :namespace OR :namespace = '') AND NOT deleted
          AND position < (SELECT position FROM snapshots WHERE (stream, cluster, resource, namespace) = (:stream, :cluster, :resource, :namespace))""";

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
                            apply(db, record.value(), record.partition(), record.offset());
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

    static void apply(Connection db, CloudEvent event, int stream, long position) throws Exception {
        JsonNode data = JSON.readTree(event.getData().toBytes());
        Map<String, Object> row = new HashMap<>(Map.of("stream", stream, "position", position, "id", event.getId(),
                "time", event.getTime().toInstant().toString(), "namespace", data.path("namespace").asText("")));
        String type = data.path("type").asText();
        if (run(db, ADVANCE, row) == 0 || !TYPES.contains(type) || type.equals("SNAPSHOT") && run(db, ONCE, row) == 0) {
            return; // it is read again, of a later version, or repeated
        }
        JsonNode gvr = data.get("resource");
        String group = gvr.get("group").asText();
        Object sequence = event.getExtension("sequence");
        row.putAll(Map.of("cluster", event.getSource().toString().substring("/clusters/".length()),
                "subject", event.getSubject(), "sequence", sequence == null ? "" : sequence, "type", type,
                "resource", (group.isEmpty() ? "" : group + "/") + gvr.get("version").asText() + "/" + gvr.get("resource").asText(),
                "deleted", type.equals("DELETED"), "snapshot", data.path("snapshot").asText(), "replayed", event.getExtension("replayed") != null,
                "derived", data.path("snapshot").asBoolean() || data.path("inferred").asBoolean(),
                "object", (data.has("object") ? data.get("object") : data).toString()));
        if (type.equals("GAP")) {
            run(db, LOG, row);
        } else if (!type.equals("SNAPSHOT")) { // transforms may have removed from the object what the id and the subject have
            Matcher namespaced = NAMESPACE.matcher(event.getSubject());
            String[] id = event.getId().split("/");
            row.putAll(Map.of("namespace", namespaced.matches() ? namespaced.group(1) : "", "uid", id[id.length - 3], "version", id[id.length - 2]));
            run(db, LOG, row);
            if (run(db, UPSERT, row) == 0) {
                run(db, SEEN, row);
            }
        } else if (data.get("phase").asText().equals("started")) {
            run(db, BEGIN, row);
        } else if (run(db, END, row) > 0 && data.get("complete").asBoolean()) {
            run(db, SWEEP, row);
        }
    }

    static int run(Connection db, String sql, Map<String, Object> row) throws SQLException {
        List<Object> values = new ArrayList<>();
        String positional = NAME.matcher(sql).replaceAll(name -> values.add(row.get(name.group(1))) ? "?" : "");
        try (PreparedStatement statement = db.prepareStatement(positional)) {
            for (int i = 0; i < values.size(); i++) {
                statement.setObject(i + 1, values.get(i));
            }
            return statement.executeUpdate();
        }
    }
}
