"""The SQL of the pages runs as printed, page by page, in psql."""

import subprocess

PREPARED = {
    # the extension, as far as the page uses it: what is scheduled is run once, at once
    "docs/howto/run-in-production.md": """
create schema cron;
create function cron.schedule(job_name text, schedule text, command text) returns bigint language plpgsql as
$f$ begin execute command; return 1; end $f$;
""",
}


def psql(server, dsn, script):
    """Run a script; the first error ends it."""
    command = [server.bin_dir / "psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", dsn]
    return subprocess.run([*command, "--file", "-"], check=False, input=script, capture_output=True, text=True)


def test_the_sql_of_a_page_runs_as_printed(sql_page, server, database):
    script = "\n".join(block.text for block in sql_page.blocks("sql"))
    if "begin;" not in script:  # roles are of the whole cluster: leave none
        script = f"begin;\n{PREPARED.get(str(sql_page), '')}{script}\nrollback;"
    done = psql(server, database, script)
    assert done.returncode == 0, done.stderr
    assert not {"stale", "unknown", "busy"} & set(done.stdout.split())


def test_the_script_for_a_dba_makes_a_schema_that_fits(server, empty_database, capsys):
    from postrow.cli import main

    assert main(["migrate", "--sql"]) == 0
    done = psql(server, empty_database, capsys.readouterr().out)
    assert done.returncode == 0, done.stderr
    assert main(["migrate", "--check", "--dsn", empty_database]) == 0
