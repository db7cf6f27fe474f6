-- Which of these settlements were accepted before? Their reply was lost, and the first answer is given again.
SELECT jobs.id FROM json_each(:settlements) AS sent
 CROSS JOIN jobs ON jobs.id = sent.value ->> 0 AND jobs.last_token = sent.value ->> 1
